"""Paired timings of a candidate and a rival, and gains computed from them: the evidence of a confirmation."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass

from evo_kernel.types.tasks import CaseKind


class Rival(enum.StrEnum):
    """What a would-be champion is timed against, side by side."""

    FIRST = "first kernel"  # the task's seed, or what lowering wrote
    CHAMPION = "champion"  # the one before it


NOTICEABLE = 1.01
"""Ratios of times within it are not worth telling apart."""
SAME = "the same plan"
"""Verdict on a candidate whose plan is its rival's: nothing is timed."""


@dataclass(frozen=True)
class PairedComparison:
    """A candidate and a rival on one case, timed side by side on fresh inputs. Ratios are rival ÷ candidate."""

    case: str
    kind: CaseKind  # search or confirm
    against: Rival
    plan: str  # hash of the rival's plan
    ratio: float  # above 1, the candidate is faster
    low: float  # interval of the ratio (99 %, or stricter where it was clear early); equal to it when modeled
    high: float
    pairs: int  # 0 when modeled, and where the two could only be timed one after the other
    verdict: str  # of fitness/timing/estimates.py, or SAME
    claimed: float | None = None  # the ratio that the search had measured, unpaired; None where it had not

    def __post_init__(self) -> None:
        for name in ("ratio", "low", "high", "claimed"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{self.case}: {name} is {value}: a ratio of times is finite and positive")


@dataclass(frozen=True)
class Gain:
    """A ratio of times over several cases (geometric mean), with an interval that is wide rather than narrow."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f}x" + (f" ({self.low:.3f} to {self.high:.3f})" if self.low < self.high else "")


CLAIM_WORTH = 1.01
"""A claimed gain below this is none to speak of: of how much of it survived there is nothing to say."""


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))
