"""Promotion: what a kernel must show to be committed by an agent, and to become champion.

**Gain.** Over the search cases that both were timed on, r_i = log(older_i ÷ new_i), with standard deviation
s_i = hypot of both intervals' (log high − log low) / (2 · 1.96). The gain is the mean of the r_i (log of the geometric
mean), with variance Σ s_i² / k² + 2 · DRIFT² (the drift between evaluations; none where times are modeled). It is sure
where mean − 1.645 · deviation is above zero: one-sided, 95 %.

**Regressions.** No r_i may be below −log(1 + regress).

A commit asks both twice: of the evaluation that the kernel is submitted with, and of one that is made for the purpose,
because the best of many measured once looks faster than it is. A champion needs a confirmation: fresh pairs on hidden
cases, beside the first kernel and the champion before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evo_kernel.types.comparisons import NOTICEABLE, SAME, Gain, Rival
from evo_kernel.types.evaluations import DRIFT, SURE_DEVIATIONS, Evaluation, Measurement, Status
from evo_kernel.types.tasks import CaseKind

FIRST = 1
"""The candidate that every population begins with: the first kernel."""
REGRESS = 0.05
"""By how much a case may become slower."""


@dataclass(frozen=True)
class GateVerdict:
    """What the commit gate says. `reason`: a sentence that an agent can act on, never of hidden cases."""

    passed: bool
    reason: str
    gain: Gain | None = None  # over the version to beat; None where there is none, or nothing was timed
    charged: Mapping[str, int] = field(default_factory=dict)  # evaluations by purpose that deciding has cost
    gpu_s: float = 0.0


def confirmed(confirmation: Evaluation, candidate: int) -> Evaluation:
    """A confirmation as it counts: a kernel that is right, but that the pairs refute, has not passed."""
    reason = refutation(confirmation, candidate) if confirmation.passed else ""
    return replace(confirmation, status=Status.REFUTED, reason=reason, score=None) if reason else confirmation


def refutation(confirmation: Evaluation, candidate: int | None = None) -> str:
    """Why it is no champion, by the pairs, in a sentence; empty where it stands.

    The first kernel claims no gain over itself: its knobs may be no better than those that it is written with, but not
    noticeably worse.
    """
    first = confirmation.gain_over(Rival.FIRST, CaseKind.SEARCH)
    if candidate == FIRST:
        if first is not None and first.high < 1.0 / NOTICEABLE:
            return f"fresh pairs show it slower with these knobs than as it is written: {first}"
    elif first is not None and first.low <= 1.0:
        itself = all(one.verdict == SAME for one in confirmation.compared(Rival.FIRST, CaseKind.SEARCH))
        if not itself:
            return f"fresh pairs do not show it faster than the first kernel on the search cases: {first}"
    older = confirmation.gain_over(Rival.CHAMPION, CaseKind.CONFIRM)
    if older is not None and older.high < 1.0:
        return f"fresh pairs show it slower than the champion on the confirm cases: {older}"
    unseen = confirmation.gain_over(Rival.FIRST, CaseKind.CONFIRM)
    if candidate != FIRST and unseen is not None and unseen.high < 1.0 / NOTICEABLE:
        return f"fresh pairs show it slower than the first kernel on the confirm cases: {unseen}"
    return ""


def surely_better(new: Evaluation, older: Evaluation | None, regress: float = REGRESS) -> GateVerdict:
    """By the measurements of two scores. Without an older one, what is correct passes."""
    if not new.passed:
        return GateVerdict(False, f"It is not correct: {new.status}.")
    if older is None or not older.passed:
        return GateVerdict(True, "There is no correct version to beat.")
    before = {one.case: one for one in older.measurements}
    met = [(one, before[one.case]) for one in new.measurements if one.case in before]
    if not met:
        return GateVerdict(False, "It was timed on no case that the version to beat was timed on.")
    if all(one.plan == other.plan for one, other in met):
        return GateVerdict(
            False, "It is the same kernel as the version to beat: every plan is equal.", Gain(1.0, 1.0, 1.0)
        )
    ratios = [_ratio(one, other) for one, other in met]
    gain = _gain(ratios, timed=any(one.n for pair in met for one in pair))
    slower = [
        f"{one.case} is {(math.exp(-ratio) - 1) * 100:.1f} % slower"
        for (one, _), (ratio, _) in zip(met, ratios, strict=True)
        if ratio < -math.log1p(regress)
    ]
    if gain.low <= 1.0:
        return GateVerdict(False, f"Its gain over the version to beat is not sure: {gain}.", gain)
    if slower:
        limit = f"{regress:.0%} is allowed"
        return GateVerdict(False, f"Its gain is {gain}, but {', '.join(slower[:4])}; {limit}.", gain)
    return GateVerdict(True, f"Its gain over the version to beat is {gain}.", gain)


def stands(confirmation: Evaluation, regress: float = REGRESS) -> GateVerdict:
    """By a confirmation on hidden cases, side by side with the version to beat. The reason gives no case away."""
    if not confirmation.passed:
        return GateVerdict(False, f"On shapes that are not shown here it does not stand: {confirmation.status}. Check "
                              "masks, strides and sizes that are no multiple of a block.")  # fmt: skip
    if refutation(confirmation):
        for rival, name in ((Rival.CHAMPION, "the version to beat"), (Rival.FIRST, "the first kernel")):
            unseen = confirmation.gain_over(rival, CaseKind.CONFIRM)
            if unseen is not None and unseen.high < 1.0:
                said = f"On the shapes that are not shown here it is, on the whole, slower than {name}: look at "
                return GateVerdict(
                    False, said + "sizes that do not fill a block, and at branches that no shown shape takes."
                )
        return GateVerdict(False, "Timed anew on fresh inputs, it is not surely faster than the first kernel.")
    hidden = [one for one in confirmation.comparisons if one.against is Rival.CHAMPION and one.kind is CaseKind.CONFIRM]
    if any(one.high < 1.0 / (1.0 + regress) for one in hidden):
        return GateVerdict(False, "On a shape that is not shown here it is slower than allowed.")
    return GateVerdict(True, "It stands on shapes that are not shown here.")


def _ratio(new: Measurement, older: Measurement) -> tuple[float, float]:
    """(log of older ÷ new, its standard deviation)."""
    return math.log(older.median_us / new.median_us), math.hypot(new.log_deviation, older.log_deviation)


def _gain(ratios: list[tuple[float, float]], timed: bool) -> Gain:
    count = len(ratios)
    mean = math.fsum(ratio for ratio, _ in ratios) / count
    variance = math.fsum(deviation**2 for _, deviation in ratios) / count**2 + (2.0 * DRIFT**2 if timed else 0.0)
    margin = SURE_DEVIATIONS * math.sqrt(variance)
    return Gain(math.exp(mean), math.exp(mean - margin), math.exp(mean + margin))
