"""Tunes a source: races knob settings against its own over the search cases."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from evo_kernel.errors import CutShort
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.evaluation_context import EvaluationContext, PartialEvaluation, mean_log
from evo_kernel.fitness.grading import Grader
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, Launch
from evo_kernel.fitness.record.recorder import RecordFault, Recording
from evo_kernel.fitness.tuning.proposals import Knob, Search, Space, find_knobs, knob_groups
from evo_kernel.tasks.task import Case
from evo_kernel.types import CaseKind, Knobs, Measurement, Source

RACE_LOG = math.log(1.25)  # a setting so much slower than the best so far is not timed on further cases

FIXED_TILE = 256
_TILE = re.compile(r"tensor<((?:\d+x)+)")
DOT_WEIGHT = 8.0
"""Assumed cost of a kernel with matrix products, relative to one that only reads and writes the same buffers."""
Times = tuple[Measurement, ...]
"""Plans of one setting, by search case."""
REMEMBERED = 16
"""Settings that were faster, of the latest sources."""
PATIENCE_S = 10.0
"""Compilations that take longer are abandoned: other settings are as likely to be good and wait for the cores."""


@dataclass
class _Entrant:
    """A setting in the race, with its results so far."""

    setting: Knobs
    partial: PartialEvaluation = field(default_factory=PartialEvaluation)
    plans: list[tuple[Case, CompiledPlan]] = field(default_factory=list)

    @property
    def times(self) -> tuple[Measurement, ...]:
        return self.partial.measurements

    @property
    def cost(self) -> float:
        """Mean log µs over the cases so far."""
        return mean_log(self.times)


class Tuning:
    """Finds the setting with which a source is scored. Thread-safe."""

    def __init__(self, grader: Grader, seed: int, within: float) -> None:
        self._grader, self._within = grader, within
        self._seed = seed
        self._lock = threading.Lock()
        self._best_log_us = math.inf
        self._faster: deque[tuple[dict[str, int], Knobs]] = deque(maxlen=REMEMBERED)

    def tune(self, context: EvaluationContext, recording: Recording, own: PartialEvaluation) -> PartialEvaluation:
        """Race knob settings over the search cases; return the fastest that passes the checks.

        On a GPU, a source faster than those before it is also checked with a wide range of values, as when confirmed.
        `own`: results of the source as written, with times. When the time limit is reached, the best of the settings
        that finished is used, or the source's own.
        """
        best_log = mean_log(own.measurements)
        worth = context.tune_plans > 0 and (context.thorough or self.is_worth(best_log, 0))
        knobs = find_knobs(context.source, recording.configs) if worth else ()
        spaces = _spaces(context.source, knobs, recording.plans[(self._grader.cases(CaseKind.SEARCH)[0].name, ())])
        search = Search(self._seed, context.source, spaces, context.tune_plans, best_log)
        values = {knob.name: knob.value for knob in knobs}
        search.suggest(self._found_for(values))
        entered: list[_Entrant] = []
        arrived: list[_Entrant] = []
        for rounds, batch in enumerate(search.batches(), start=1):
            racing = [_Entrant(setting) for setting in batch]
            entered += racing
            arrived += self._race(context, search, racing, [own.measurements, *(entrant.times for entrant in arrived)])
            if context.deadline.over:
                break
            if arrived and (fastest := min(arrived, key=lambda entrant: entrant.cost)).cost < best_log:
                self._note_faster(values, fastest.setting)
            search.suggest(self._found_for(values))
            if not (context.thorough or self.is_worth(min([best_log, *(entrant.cost for entrant in arrived)]), rounds)):
                break
        taken: _Entrant | None = None
        with contextlib.suppress(CutShort):
            taken = self._best_right(context, arrived, best_log)
        partial = own.beside([entrant.partial for entrant in entered])
        if taken:
            partial = replace(partial, knobs=taken.setting, checks=taken.partial.checks, measurements=taken.times)
            best_log = taken.cost
            self._note_faster(values, taken.setting)
        if context.runner.stages.gpus and self._leads(best_log):  # without a GPU this takes seconds
            plans = taken.plans if taken else self._grader.timed_plans(recording)
            partial = partial.then(self._grader.check_at_size(context, plans, regimes.WIDE))
        if partial.ended.passed:
            self.note_best(best_log)
        return partial

    def _best_right(self, context: EvaluationContext, arrived: Sequence[_Entrant], best_log: float) -> _Entrant | None:
        """The fastest setting faster than `best_log` that passes the checks, and keeps its time with outputs checked.

        Launches of the race were not checked. Raises CutShort.
        """
        for entrant in sorted(arrived, key=lambda entrant: entrant.cost):
            if entrant.cost >= best_log:
                break
            context.deadline.check()
            checks = self._grader.record(context.source, (CaseKind.CHECK,), [entrant.setting])
            entrant.partial = entrant.partial.then(self._grader.grade(context, checks, entrant.setting))
            if not entrant.partial.ended.passed:
                continue
            timed = self._grader.retime(context, entrant.plans, entrant.setting)
            entrant.partial = replace(entrant.partial, measurements=()).then(replace(timed, plans=()))
            if entrant.partial.ended.passed and entrant.cost < best_log:
                return entrant
        return None

    def _race(
        self, context: EvaluationContext, search: Search, racing: Sequence[_Entrant], others: list[Times]
    ) -> Sequence[_Entrant]:
        """The settings that keep up over all search cases. One that falls behind on a case is not compiled for the
        next.

        `others`: measurements of finished settings, the source's own first. The tuner is told every setting's cost:
        extrapolated if it fell behind, none if it failed.
        """
        best_log = min(mean_log(times) for times in others)
        cases = self._grader.cases(CaseKind.SEARCH)
        for number, case in enumerate(cases, start=1):
            if not racing or context.deadline.over:
                return []
            settings = [entrant.setting for entrant in racing]
            recording = self._grader.record_case(
                context.source, case, settings, min(PATIENCE_S, context.deadline.left_s)
            )
            costs: dict[Knobs, float | None] = {}
            leader = min(others, key=lambda times: mean_log(times[:number]))[:number]
            for entrant in racing:
                if not self._timed(
                    context, entrant, case, recording.plans[(case.name, entrant.setting)], leader[-1].median_us
                ):
                    costs[entrant.setting] = None
                    continue
                behind = entrant.cost - mean_log(leader)
                leader = entrant.times if behind < 0 else leader
                if number < len(cases) and behind > RACE_LOG:
                    costs[entrant.setting] = best_log + behind
            for setting, cost in costs.items():
                search.tell(setting, cost)
            racing = [entrant for entrant in racing if entrant.setting not in costs]
        for entrant in racing:
            search.tell(entrant.setting, entrant.cost)
        return racing

    def _timed(
        self,
        context: EvaluationContext,
        entrant: _Entrant,
        case: Case,
        plan: CompiledPlan | RecordFault,
        against_us: float,
    ) -> bool:
        """Measure a setting on one more case; False if it fails."""
        if isinstance(plan, RecordFault):
            return False
        entrant.partial = entrant.partial.then(self._grader.time(context, plan, case, entrant.setting, against_us))
        entrant.plans.append((case, plan))
        return entrant.partial.ended.passed

    def is_worth(self, log_us: float, rounds: int) -> bool:
        """Whether a source deserves more settings: after each round it must be closer to the best."""
        with self._lock:
            return log_us <= self._best_log_us + math.log(self._within) / (1 + rounds)

    def _found_for(self, values: Mapping[str, int]) -> Knobs:
        """The latest setting that was faster for a source which has the knobs that it changes with these values: a
        child that was made before its parent was tuned need not begin anew. Empty where there is none."""
        with self._lock:
            for own, setting in reversed(self._faster):
                if all(values.get(name) == own[name] for name, _ in setting):
                    return setting
        return ()

    def _note_faster(self, values: Mapping[str, int], setting: Knobs) -> None:
        with self._lock:
            self._faster = deque((one for one in self._faster if one != (values, setting)), maxlen=REMEMBERED)
            self._faster.append((dict(values), setting))

    def _leads(self, log_us: float) -> bool:
        with self._lock:
            return log_us < self._best_log_us < math.inf

    def note_best(self, log_us: float) -> None:
        """The mean log µs that a source ended with."""
        with self._lock:
            self._best_log_us = min(self._best_log_us, log_us)


def _spaces(source: Source, knobs: Sequence[Knob], plan: CompiledPlan | RecordFault) -> list[Space]:
    """Groups of knobs to tune together, weighted by their kernels' expected share of the time."""
    if isinstance(plan, RecordFault):
        return [Space(tuple(knobs))] if knobs else []
    spaces = []
    for group in knob_groups(source, knobs):
        kernels = [n for n, kernel in enumerate(plan.plan.kernels) if not group.kernels or kernel.name in group.kernels]
        weight = sum(
            _weight(plan, node) for node in plan.plan.nodes if isinstance(node, Launch) and node.kernel in kernels
        )
        multiplies = any(_multiplies(plan, number) for number in kernels)
        spaces.append(Space(group.knobs, weight, tuple(_fixed_tiles(plan, kernels, group.knobs)), multiplies))
    return spaces


def _weight(plan: CompiledPlan, launch: Launch) -> float:
    """Bytes of the buffers that a launch takes, times DOT_WEIGHT if it multiplies matrices."""
    moved = sum(plan.plan.buffers[buffer].bytes for buffer in plan.plan.reached(launch))
    return moved * (DOT_WEIGHT if _multiplies(plan, launch.kernel) else 1.0)


def _multiplies(plan: CompiledPlan, kernel: int) -> bool:
    """Whether a kernel multiplies matrices."""
    return "dot" in (plan.binaries[kernel].ir or plan.plan.kernels[kernel].code)


def _fixed_tiles(plan: CompiledPlan, kernels: Sequence[int], knobs: Sequence[Knob]) -> list[int]:
    """The largest tile side in one of the kernels that no knob sets, if it is from 16 to FIXED_TILE; as a list."""
    shapes = {shape for number in kernels for shape in _TILE.findall(plan.binaries[number].ir)}
    fixed = {int(side) for shape in shapes for side in shape.split("x") if side} - {knob.value for knob in knobs}
    return [largest] if (largest := max((side for side in fixed if 16 <= side <= FIXED_TILE), default=0)) else []
