"""Tuning: knob settings of a source, raced against its own over the search cases."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from evo_kernel.errors import CutShort
from evo_kernel.fitness.evaluation_context import EvaluationContext, mean_log
from evo_kernel.fitness.grading import Grader
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, Descriptor, Launch, Pointer
from evo_kernel.fitness.record.recorder import RecordFault, Recording
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.tuning.knobs import Knob, find_knobs, knob_groups
from evo_kernel.fitness.tuning.proposals import Search, Space
from evo_kernel.tasks.task import Case
from evo_kernel.types import CaseKind, Knobs, Measurement, PlanVerdict, Source, Status

RACE_LOG = math.log(1.25)  # a setting so far behind the best on the cases so far is not timed on the others

FIXED_TILE = 256
_TILE = re.compile(r"tensor<((?:\d+x)+)")
DOT_WEIGHT = 8.0
"""How much longer than a kernel that only passes over the same buffers one with matrix products is taken to be."""
PATIENCE_S = 10.0
"""A setting that compiles longer is dropped: others of the dozen are as likely to be good, and wait for the cores."""


@dataclass
class _Entrant:
    """A setting in the race, with what it has behind it."""

    setting: Knobs
    found: list[Measurement] = field(default_factory=list)
    plans: list[tuple[Case, CompiledPlan]] = field(default_factory=list)

    @property
    def cost(self) -> float:
        """Mean log µs over the cases so far."""
        return mean_log(self.found)


class Tuning:
    """Finds the setting that a source is scored with. Thread-safe."""

    def __init__(self, grader: Grader, seed: int, within: float) -> None:
        """`within`: see JudgeSettings."""
        self._grader, self._within = grader, within
        self._seed = seed
        self._lock = threading.Lock()
        self._best_log_us = math.inf

    def tune(
        self, work: EvaluationContext, recording: Recording, own: list[Measurement]
    ) -> tuple[Knobs, list[Measurement]]:
        """Try knob settings, raced over the search cases; the best that also checks is taken.

        When the time for it is up, the best of those that have arrived; the source's own where that is too late, too.
        """
        best_log = mean_log(own)
        knobs = find_knobs(work.source, dict(recording.configs)) if work.thorough or self._is_worth(best_log, 0) else ()
        arrived: list[_Entrant] = []
        spaces = _spaces(work.source, knobs, recording.plans[(self._grader.cases(CaseKind.SEARCH)[0].name, ())])
        search = Search(self._seed, work.source, spaces, work.tune_plans, best_log)
        for rounds, batch in enumerate(search.batches(), start=1):
            arrived += self._race(work, search, batch, [own, *(one.found for one in arrived)])
            if work.deadline.over:
                break
            if not (work.thorough or self._is_worth(min([best_log, *(one.cost for one in arrived)]), rounds)):
                break
        with contextlib.suppress(CutShort):
            if taken := self._best_right(work, arrived, best_log):
                return taken
        self._note_best(best_log)
        return (), own

    def _best_right(
        self, work: EvaluationContext, arrived: Sequence[_Entrant], best_log: float
    ) -> tuple[Knobs, list[Measurement]] | None:
        """The fastest of those faster than `best_log` that checks, at full size too. Raises CutShort."""
        for one in sorted(arrived, key=lambda one: one.cost):
            if one.cost >= best_log:
                break
            work.deadline.check()
            checks = self._grader.record(work.source, (CaseKind.CHECK,), [one.setting])
            right = self._grader.check_setting(work, checks, one.setting).passed
            right = right and self._grader.right_when_timed(work, one.plans)
            if right and self._grader.stays_modeled(work, one.plans, one.found):
                self._note_best(one.cost)
                for m in one.found:
                    self._grader.keep(work, PlanVerdict(m.case, m.plan, Status.PASSED, "", None, m))
                return one.setting, one.found
        return None

    def _race(
        self, work: EvaluationContext, search: Search, batch: Sequence[Knobs], others: list[list[Measurement]]
    ) -> list[_Entrant]:
        """The settings that keep up over all search cases; what falls behind on one is not even compiled for the next.

        `others`: measurements of settings that have arrived, the source's own first. The tuner is told of each setting:
        the cost of one that fell behind is extrapolated, one that failed has none.
        """
        racing, best_log = [_Entrant(setting) for setting in batch], min(mean_log(found) for found in others)
        cases = self._grader.cases(CaseKind.SEARCH)
        for number, case in enumerate(cases, start=1):
            if not racing or work.deadline.over:
                return []
            settings = [one.setting for one in racing]
            recording = self._grader.record_case(work.source, case, settings, min(PATIENCE_S, work.deadline.left_s))
            costs: dict[Knobs, float | None] = {}
            leader = min(others, key=lambda found: mean_log(found[:number]))[:number]
            for one in racing:
                if not self._timed(work, one, case, recording.plans[(case.name, one.setting)], leader[-1].median_us):
                    costs[one.setting] = None
                    continue
                behind = one.cost - mean_log(leader)
                leader = one.found[:] if behind < 0 else leader
                if number < len(cases) and behind > RACE_LOG:
                    costs[one.setting] = best_log + behind
            for setting, cost in costs.items():
                search.tell(setting, cost)
            racing = [one for one in racing if one.setting not in costs]
        for one in racing:
            search.tell(one.setting, one.cost)
        return racing

    def _timed(
        self, work: EvaluationContext, one: _Entrant, case: Case, plan: CompiledPlan | RecordFault, against_us: float
    ) -> bool:
        """Measure a setting on one more case; False when it cannot be."""
        if isinstance(plan, RecordFault):
            return False
        work.plans.append((case.name, one.setting, plan.hash))
        measured = self._grader.measured(work, plan, case, checked=False, against_us=against_us)
        if isinstance(measured, Checked):
            return False
        one.found.append(measured)
        one.plans.append((case, plan))
        return True

    def _is_worth(self, log_us: float, rounds: int) -> bool:
        """Whether a source is worth more settings: the more rounds it had, the nearer it must be to the best."""
        with self._lock:
            return log_us <= self._best_log_us + math.log(self._within) / (1 + rounds)

    def _note_best(self, log_us: float) -> None:
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
