"""Tuning: knob settings of a source, raced against its own over the search cases."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from evo_kernel.errors import CutShort
from evo_kernel.fitness.evaluation_context import EvaluationContext, Findings, mean_log
from evo_kernel.fitness.grading import Grader
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, Descriptor, Launch, Pointer
from evo_kernel.fitness.record.recorder import RecordFault, Recording
from evo_kernel.fitness.tuning.knobs import Knob, find_knobs, knob_groups
from evo_kernel.fitness.tuning.proposals import Search, Space
from evo_kernel.tasks.task import Case
from evo_kernel.types import CaseKind, Knobs, Measurement, Source

RACE_LOG = math.log(1.25)  # a setting so far behind the best on the cases so far is not timed on the others

FIXED_TILE = 256
_TILE = re.compile(r"tensor<((?:\d+x)+)")
DOT_WEIGHT = 8.0
"""How much longer than a kernel that only passes over the same buffers one with matrix products is taken to be."""
Times = tuple[Measurement, ...]
"""Of one setting, by search case."""
PATIENCE_S = 10.0
"""A setting that compiles longer is dropped: others of the dozen are as likely to be good, and wait for the cores."""


@dataclass
class _Entrant:
    """A setting in the race, with what it has behind it."""

    setting: Knobs
    found: Findings = field(default_factory=Findings)
    plans: list[tuple[Case, CompiledPlan]] = field(default_factory=list)

    @property
    def times(self) -> tuple[Measurement, ...]:
        return self.found.measurements

    @property
    def cost(self) -> float:
        """Mean log µs over the cases so far."""
        return mean_log(self.times)


class Tuning:
    """Finds the setting that a source is scored with. Thread-safe."""

    def __init__(self, grader: Grader, seed: int, within: float) -> None:
        """`within`: see JudgeSettings."""
        self._grader, self._within = grader, within
        self._seed = seed
        self._lock = threading.Lock()
        self._best_log_us = math.inf

    def tune(self, context: EvaluationContext, recording: Recording, own: Findings) -> Findings:
        """Try knob settings, raced over the search cases; the best that also checks is taken.

        `own`: of the source as it is written, with times. When the time for it is up, the best of those that have
        arrived; the source's own where that is too late, too.
        """
        best_log = mean_log(own.measurements)
        worth = context.thorough or self.is_worth(best_log, 0)
        knobs = find_knobs(context.source, dict(recording.configs)) if worth else ()
        spaces = _spaces(context.source, knobs, recording.plans[(self._grader.cases(CaseKind.SEARCH)[0].name, ())])
        search = Search(self._seed, context.source, spaces, context.tune_plans, best_log)
        entered: list[_Entrant] = []
        arrived: list[_Entrant] = []
        for rounds, batch in enumerate(search.batches(), start=1):
            racing = [_Entrant(setting) for setting in batch]
            entered += racing
            arrived += self._race(context, search, racing, [own.measurements, *(one.times for one in arrived)])
            if context.deadline.over:
                break
            if not (context.thorough or self.is_worth(min([best_log, *(one.cost for one in arrived)]), rounds)):
                break
        taken: _Entrant | None = None
        with contextlib.suppress(CutShort):
            taken = self._best_right(context, arrived, best_log)
        self.note_best(taken.cost if taken else best_log)
        found = own.beside([one.found for one in entered])
        return replace(found, knobs=taken.setting, measurements=taken.times) if taken else found

    def _best_right(self, context: EvaluationContext, arrived: Sequence[_Entrant], best_log: float) -> _Entrant | None:
        """The fastest of those faster than `best_log` that checks, and stays so with outputs checked while it is timed:
        nobody looked at the launches of the race. Raises CutShort."""
        for one in sorted(arrived, key=lambda one: one.cost):
            if one.cost >= best_log:
                break
            context.deadline.check()
            checks = self._grader.record(context.source, (CaseKind.CHECK,), [one.setting])
            one.found = one.found.then(self._grader.grade(context, checks, one.setting))
            if not one.found.ended.passed:
                continue
            timed = self._grader.retime(context, one.plans, one.setting)
            one.found = replace(one.found, measurements=()).then(replace(timed, plans=()))
            if one.found.ended.passed and one.cost < best_log:
                return one
        return None

    def _race(
        self, context: EvaluationContext, search: Search, racing: Sequence[_Entrant], others: list[Times]
    ) -> Sequence[_Entrant]:
        """The settings that keep up over all search cases; what falls behind on one is not even compiled for the next.

        `others`: measurements of settings that have arrived, the source's own first. The tuner is told of each setting:
        the cost of one that fell behind is extrapolated, one that failed has none.
        """
        best_log = min(mean_log(times) for times in others)
        cases = self._grader.cases(CaseKind.SEARCH)
        for number, case in enumerate(cases, start=1):
            if not racing or context.deadline.over:
                return []
            settings = [one.setting for one in racing]
            recording = self._grader.record_case(
                context.source, case, settings, min(PATIENCE_S, context.deadline.left_s)
            )
            costs: dict[Knobs, float | None] = {}
            leader = min(others, key=lambda times: mean_log(times[:number]))[:number]
            for one in racing:
                if not self._timed(context, one, case, recording.plans[(case.name, one.setting)], leader[-1].median_us):
                    costs[one.setting] = None
                    continue
                behind = one.cost - mean_log(leader)
                leader = one.times if behind < 0 else leader
                if number < len(cases) and behind > RACE_LOG:
                    costs[one.setting] = best_log + behind
            for setting, cost in costs.items():
                search.tell(setting, cost)
            racing = [one for one in racing if one.setting not in costs]
        for one in racing:
            search.tell(one.setting, one.cost)
        return racing

    def _timed(
        self, context: EvaluationContext, one: _Entrant, case: Case, plan: CompiledPlan | RecordFault, against_us: float
    ) -> bool:
        """Measure a setting on one more case; False when it cannot be."""
        if isinstance(plan, RecordFault):
            return False
        one.found = one.found.then(self._grader.time(context, plan, case, one.setting, against_us))
        one.plans.append((case, plan))
        return one.found.ended.passed

    def is_worth(self, log_us: float, rounds: int) -> bool:
        """Whether a source is worth more settings: the more rounds it had, the nearer it must be to the best."""
        with self._lock:
            return log_us <= self._best_log_us + math.log(self._within) / (1 + rounds)

    def note_best(self, log_us: float) -> None:
        """The mean log µs that a source ended with."""
        with self._lock:
            self._best_log_us = min(self._best_log_us, log_us)


def _spaces(source: Source, knobs: Sequence[Knob], plan: CompiledPlan | RecordFault) -> list[Space]:
    """What is tuned together, weighted by what its kernels are likely to take of the time."""
    if isinstance(plan, RecordFault):
        return [Space(tuple(knobs))] if knobs else []
    spaces = []
    for group in knob_groups(source, knobs):
        kernels = [n for n, kernel in enumerate(plan.plan.kernels) if not group.kernels or kernel.name in group.kernels]
        weight = sum(
            _weight(plan, node) for node in plan.plan.nodes if isinstance(node, Launch) and node.kernel in kernels
        )
        spaces.append(Space(group.knobs, weight, tuple(_fixed_tiles(plan, kernels, group.knobs))))
    return spaces


def _weight(plan: CompiledPlan, launch: Launch) -> float:
    """Bytes of the buffers that a launch takes, times DOT_WEIGHT where it multiplies matrices."""
    buffers = {arg.buffer for arg in launch.args if isinstance(arg, Pointer | Descriptor)}
    moved = sum(plan.plan.buffers[buffer].bytes for buffer in buffers)
    code = plan.binaries[launch.kernel].ir or plan.plan.kernels[launch.kernel].code
    return moved * (DOT_WEIGHT if "dot" in code else 1.0)


def _fixed_tiles(plan: CompiledPlan, kernels: Sequence[int], knobs: Sequence[Knob]) -> list[int]:
    """The largest side of a tile in one of the kernels that no knob sets, if there is one of 16 to FIXED_TILE."""
    shapes = {shape for number in kernels for shape in _TILE.findall(plan.binaries[number].ir)}
    fixed = {int(side) for shape in shapes for side in shape.split("x") if side} - {knob.value for knob in knobs}
    return [largest] if (largest := max((side for side in fixed if 16 <= side <= FIXED_TILE), default=0)) else []
