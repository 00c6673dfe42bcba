"""Confirmation: compares a would-be champion with the first kernel and the previous champion, in fresh pairs.

The best of many kernels that were each measured once looks faster than it is. So its gain is measured again by a new
process, in pairs on fresh inputs, on the hidden cases too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo_kernel.errors import LoweringError
from evo_kernel.fitness.correctness.references import fresh_seed
from evo_kernel.fitness.evaluation_context import EvaluationContext, PartialEvaluation
from evo_kernel.fitness.grading import Grader
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.recorder import RecordFault, Recording
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.fitness.timing.estimates import Comparison, PairVerdict, one_after_the_other
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, PairedComparison, Rival, Source


@dataclass(frozen=True)
class Opponent:
    """A recorded kernel to compare with, and the kinds of case for it."""

    rival: Rival
    kinds: tuple[CaseKind, ...]
    recording: Recording


class Confirmer:
    """Compares kernels of one task. Thread-safe."""

    def __init__(self, task: Task, grader: Grader) -> None:
        self._task, self._grader = task, grader

    def opponents(self, champion: Source | None) -> list[Opponent]:
        """Record the opponents before a GPU is reserved. Without a first kernel there may be none."""
        recorded = []
        try:
            first = first_kernel(self._task)
        except LoweringError:
            first = None
        for rival, source, kinds in (
            (Rival.FIRST, first, (CaseKind.SEARCH, CaseKind.CONFIRM)),
            (Rival.CHAMPION, champion, (CaseKind.CONFIRM,)),
        ):
            if source is not None:
                recorded.append(Opponent(rival, kinds, self._grader.record(source, kinds)))
        return recorded

    def claims(self, recording: Recording, opponents: Sequence[Opponent]) -> Mapping[str, float]:
        """What the search had measured of the gain over the first kernel, by search case: rival ÷ candidate."""
        claimed: dict[str, float] = {}
        for opponent in (side for side in opponents if side.rival is Rival.FIRST):
            for case in self._grader.cases(CaseKind.SEARCH):
                times = [self._known_us(case, side.plans[(case.name, ())]) for side in (opponent.recording, recording)]
                if times[0] is not None and times[1] is not None:
                    claimed[case.name] = times[0] / times[1]
        return claimed

    def compare(
        self,
        context: EvaluationContext,
        recording: Recording,
        opponents: Sequence[Opponent],
        claimed: Mapping[str, float],
    ) -> PartialEvaluation:
        """The candidate beside each opponent, case by case; its first fault ends it.

        Left out: an opponent that fails on a case, which says nothing about the candidate. Raises CutShort.
        """
        partial = PartialEvaluation()
        for opponent in opponents:
            for kind, case in self._meetings(opponent):
                context.deadline.check()
                mine, other = recording.plans[(case.name, ())], opponent.recording.plans[(case.name, ())]
                if isinstance(mine, RecordFault):
                    return partial.then(PartialEvaluation(Checked(mine.status, f"on {case.name}: {mine.reason}")))
                partial = partial.then(PartialEvaluation(plans=((case.name, (), mine.hash),)))
                if isinstance(other, RecordFault):
                    continue
                claim = claimed.get(case.name) if kind is CaseKind.SEARCH and opponent.rival is Rival.FIRST else None
                met = _side_by_side(context.runner, other, mine, case)
                if isinstance(met, Checked):
                    return partial.then(PartialEvaluation(met))
                if met is not None:
                    compared = PairedComparison(
                        case.name, kind, opponent.rival, other.hash, met.ratio, met.low, met.high, met.pairs,
                        str(met.verdict), claim,
                    )  # fmt: skip
                    partial = partial.then(PartialEvaluation(comparisons=(compared,)))
        return partial

    def _meetings(self, opponent: Opponent) -> list[tuple[CaseKind, Case]]:
        """Cases on which they meet, each once: a task with no confirm cases confirms on its search cases."""
        met: dict[str, tuple[CaseKind, Case]] = {}
        for kind in opponent.kinds:
            for case in self._grader.cases(kind):
                met.setdefault(case.name, (kind, case))
        return list(met.values())

    def _known_us(self, case: Case, plan: CompiledPlan | RecordFault) -> float | None:
        known = None if isinstance(plan, RecordFault) else self._grader.find(case.name, plan.hash)
        return known.measurement.median_us if known is not None and known.measurement is not None else None


def _side_by_side(
    runner: Runner, rival: CompiledPlan, candidate: CompiledPlan, case: Case
) -> Comparison | Checked | None:
    """What the pairs say of the candidate; its fault; or None where the rival is the one that fails."""
    if rival.hash == candidate.hash:
        return Comparison(PairVerdict.SAME, 0, 1.0, 1.0, 1.0)
    paired = runner.pair(rival, candidate, case, fresh_seed())
    if not isinstance(paired, Checked):
        return paired
    times: list[tuple[float, float, float]] = []
    for plan in (candidate, rival):  # alone, to learn whose fault it is; nobody's if two need more memory than there is
        timed = runner.measure(plan, case, fresh_seed(), precision="claim")
        if isinstance(timed, Checked):
            return timed if plan is candidate else None
        times.append((timed.median_us, timed.low_us, timed.high_us))
    return one_after_the_other(times[1], times[0])
