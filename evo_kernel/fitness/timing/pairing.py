"""Decides which of two kernels is faster from paired samples. Pure functions and their settings.

A pair is one sample of each of two plans on the same inputs, in random order, so that drift affects both. The statistic
is the median of log(incumbent ÷ challenger) over the pairs, with a percentile bootstrap interval (Efron and Tibshirani,
An Introduction to the Bootstrap, chapter 13). Interim analyses may stop early only at a stricter level, so that
repeated analyses do not raise the rate of false verdicts (Pocock, Biometrika 64, 1977).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from evo_kernel.types import NOTICEABLE, SAME


@dataclass(frozen=True)
class PairSettings:
    """Levels are those of two-sided intervals."""

    threshold: float = NOTICEABLE
    pairs: int = 100  # at most
    look_every: int = 20
    early_level: float = 0.998
    final_level: float = 0.99
    resamples: int = 4000
    noisy: float = 0.01  # half-width of the final log-ratio interval above which the verdict is NOISY


PAIRING = PairSettings()


class PairVerdict(StrEnum):
    """Verdict on the challenger."""

    FASTER = "faster"  # the interval lies above the threshold
    SLOWER = "slower"  # the interval lies below 1 ÷ threshold
    EQUAL = "equal"  # no difference above the threshold was shown, and the interval is narrow
    NOISY = "too noisy"  # the interval is too wide for a verdict
    SAME = SAME  # nothing was timed


@dataclass(frozen=True)
class Comparison:
    """Result of the pairs so far. Ratios are incumbent ÷ challenger: above 1, the challenger is faster."""

    verdict: PairVerdict | None  # None: undecided
    pairs: int
    ratio: float
    low: float
    high: float

    def as_data(self) -> dict[str, float | int | str | None]:
        verdict = str(self.verdict) if self.verdict else None
        return {"verdict": verdict, "pairs": self.pairs, "ratio": self.ratio, "low": self.low, "high": self.high}

    def line(self) -> str:
        return (
            f"{self.verdict or 'undecided'}: {self.ratio:.4f}x (interval {self.low:.4f} to {self.high:.4f}, "
            f"{self.pairs} pairs)"
        )


def compare(log_ratios: Sequence[float], settings: PairSettings = PAIRING, seed: int = 0) -> Comparison:
    """The verdict on the pairs so far; undecided between interim analyses, and if they are not conclusive."""
    n = len(log_ratios)
    if n < settings.look_every:
        median = float(np.median(log_ratios)) if n else 0.0
        return Comparison(None, n, math.exp(median), 0.0, math.inf)
    final = n >= settings.pairs
    low, high = interval(log_ratios, settings.final_level if final else settings.early_level, settings.resamples, seed)
    verdict = _clear(low, high, settings) or (_unclear(low, high, settings) if final else None)
    return Comparison(verdict, n, math.exp(float(np.median(log_ratios))), math.exp(low), math.exp(high))


def one_after_the_other(
    incumbent_us: tuple[float, float, float], challenger_us: tuple[float, float, float]
) -> Comparison:
    """Compare two times, each (median, low, high) from its own samples. Without pairs the interval is conservative."""
    ratio = incumbent_us[0] / challenger_us[0]
    low, high = incumbent_us[1] / challenger_us[2], incumbent_us[2] / challenger_us[1]
    logs = math.log(low), math.log(high)
    return Comparison(_clear(*logs, PAIRING) or _unclear(*logs, PAIRING), 0, ratio, low, high)


def _clear(low: float, high: float, settings: PairSettings) -> PairVerdict | None:
    """The verdict of a log-ratio interval, or None if it is not conclusive."""
    limit = math.log(settings.threshold)
    if low > limit:
        return PairVerdict.FASTER
    if high < -limit:
        return PairVerdict.SLOWER
    return PairVerdict.EQUAL if -limit <= low and high <= limit else None


def _unclear(low: float, high: float, settings: PairSettings) -> PairVerdict:
    return PairVerdict.NOISY if (high - low) / 2 > settings.noisy else PairVerdict.EQUAL


def interval(log_ratios: Sequence[float], level: float, resamples: int, seed: int) -> tuple[float, float]:
    """Percentile bootstrap interval of the median, deterministic for a seed."""
    values = np.asarray(log_ratios, dtype=np.float64)
    rng = np.random.default_rng(seed)
    medians = np.median(values[rng.integers(0, len(values), (resamples, len(values)))], axis=1)
    tail = (1.0 - level) / 2
    low, high = np.quantile(medians, (tail, 1.0 - tail))
    return float(low), float(high)


def run_pairs(
    take: Callable[[Sequence[bool]], Sequence[tuple[float, float]]],
    rng: np.random.Generator,
    settings: PairSettings = PAIRING,
) -> tuple[Comparison, list[float]]:
    """Take pairs until they decide. Returns the comparison and all log ratios.

    `take` gets, for each pair of a batch, whether the challenger runs first, and returns (incumbent µs, challenger µs)
    for each.
    """
    log_ratios: list[float] = []
    while True:
        count = min(settings.look_every, settings.pairs - len(log_ratios))
        first = [bool(value) for value in rng.integers(0, 2, count)]
        log_ratios += [math.log(incumbent / challenger) for incumbent, challenger in take(first)]
        comparison = compare(log_ratios, settings, seed=len(log_ratios))
        if comparison.verdict is not None:
            return comparison, log_ratios
