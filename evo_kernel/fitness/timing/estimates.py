"""Estimates a time from samples, and decides which of two kernels is faster from pairs. Pure functions and settings.

A sample is the GPU time of one graph replay on a rotated set of inputs, with caches cleared. The reported median has a
95 % interval from order statistics (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2). Event clocks
have steps of about half a microsecond, so equal readings are first spread evenly over one step: the median of grouped
data (Hogg and others, Introduction to Mathematical Statistics). Otherwise a difference of less than 10 % between
kernels of 5 µs could not be measured.

A pair is one sample of each of two plans on the same inputs, in random order, so that drift affects both. The statistic
is the median of log(incumbent ÷ challenger) over the pairs, with a percentile bootstrap interval (Efron and Tibshirani,
An Introduction to the Bootstrap, chapter 13). Interim analyses may stop early only at a stricter level, so that
repeated analyses do not raise the rate of false verdicts (Pocock, Biometrika 64, 1977).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from evo_kernel.types import NOTICEABLE, SAME

JUDGE_VERSION = 43


@dataclass(frozen=True)
class TimingSettings:
    """Precision of timing. Search uses less, promotion and claims more. Times of kernels are in µs."""

    warmup_ms: float = 3.0  # of replays before the first sample; at least `warmup` of them
    warmup: int = 2
    few: int = 3  # samples that are always taken, unless time is up
    usual: int = 5  # samples before a faster time counts as settled
    many: int = 25  # at most, in search
    short_us: float = 20.0  # shorter kernels get `short_factor` times as many samples: the event clock is coarse
    short_factor: int = 4
    enough: float = 0.01  # stop once the interval's half-width is below this share of the median
    margin: float = 0.03  # a time must differ by this from the time to beat to settle the comparison
    most_s: float = 2.0  # of sampling one plan on one case
    lead_us: float = 500.0  # batches of replays shorter than this begin with one that is not timed
    burst_us: float = math.inf  # longest batch of replays; a single replay may be longer
    rest: float = 0.0  # idle time between batches, as a multiple of a batch
    tick_us: float = 0.5  # of the event clock, if equal readings do not show a finer step
    rotate_bytes_of_l2: float = 5.0  # inputs rotate over more than this many times the size of L2
    flush_bytes_of_l2: float = 2.0
    max_sets: int = 24
    places: int = 6  # sets at least, within `places_bytes`: times depend on where buffers lie
    places_bytes: int = 2 << 30
    wall_disagreement: float = 1.5  # allowed ratio of event time to synchronised wall time
    looks: int = 5  # batches that may disagree before the time is rejected
    wall_slack_us: float = 300.0  # allowed host time for submitting and synchronising a batch
    metronome_every: int = 20  # requests between two reference copies
    stretch_us: float = 50_000.0  # longest series of reference copies that detects other users of the GPU
    metronome_bytes: int = 64 << 20


_LEAST = 5  # samples of a kernel that exceeds the whole time limit
TIMING = TimingSettings()
CLAIM = TimingSettings(few=50, usual=50, many=400, enough=0.001, most_s=0.5, burst_us=10_000.0, rest=1.0)
"""For confirmations and baselines, whose times are published.

Tensor cores at full power lower the clocks by up to 5 % within tens of milliseconds, irregularly; short bursts with
pauses keep them up.
"""


@dataclass(frozen=True)
class SampleSummary:
    """Statistics of samples, in µs."""

    median_us: float
    iqr_us: float
    low_us: float
    high_us: float
    n: int


def summarise(samples_us: Sequence[float], tick_us: float = TIMING.tick_us) -> SampleSummary:
    """Median, interquartile range and the 95 % interval of the median."""
    n = len(samples_us)
    if n == 0:
        raise ValueError("no samples")
    ordered = spread(samples_us, tick_us)
    reach = 1.96 * math.sqrt(n) / 2
    low = ordered[max(0, math.floor(n / 2 - reach))]
    high = ordered[min(n - 1, math.ceil(n / 2 + reach) - 1)]
    median = _quantile(ordered, 0.5)
    iqr = _quantile(ordered, 0.75) - _quantile(ordered, 0.25)
    return SampleSummary(median, iqr, min(low, median), max(high, median), n)


def spread(samples_us: Sequence[float], tick_us: float) -> list[float]:
    """The samples in order, with equal readings spread evenly over one step of the clock.

    The step is the smallest distance between different readings, at most `tick_us`.
    """
    ordered = sorted(samples_us)
    gaps = [after - before for before, after in pairwise(ordered) if after - before > 1e-6 * max(after, 1e-9)]
    tick = min([tick_us, *gaps])
    ordered_samples: list[float] = []
    first = 0
    while first < len(ordered):
        last = first
        while last + 1 < len(ordered) and ordered[last + 1] - ordered[first] <= 1e-6 * max(ordered[first], 1e-9):
            last += 1
        count = last - first + 1
        ordered_samples += [ordered[first] + tick * ((number + 0.5) / count - 0.5) for number in range(count)]
        first = last + 1
    return ordered_samples


def settled(samples_us: Sequence[float], settings: TimingSettings = TIMING, against_us: float | None = None) -> bool:
    """Whether more samples would not change a decision.

    `against_us`: the time to beat. The decision is clear once the interval is farther from it than the margin: after
    `few` samples for a slower kernel, after `usual` for a faster one, whose time is kept. Three samples bound the
    median with only 75 % confidence; the margin accounts for the rest.
    """
    n = len(samples_us)
    if n >= min(settings.few, _LEAST) and math.fsum(samples_us) * 1e-6 >= settings.most_s:
        return True
    if n < settings.few:
        return False
    summary = summarise(samples_us, settings.tick_us)
    factor = settings.short_factor if summary.median_us < settings.short_us else 1
    if n >= settings.many * factor:
        return True
    if n < min(settings.few * factor, settings.many):
        return False
    if against_us is not None and summary.low_us > against_us * (1 + settings.margin):
        return True
    if n < settings.usual * factor:
        return False
    if against_us is not None and summary.high_us < against_us * (1 - settings.margin):
        return True
    return (summary.high_us - summary.low_us) / 2 <= settings.enough * summary.median_us


def next_batch(taken: int, settings: TimingSettings, expected_us: float) -> int:
    """How many samples to queue next. `expected_us`: a first guess of one sample."""
    factor = settings.short_factor if expected_us < settings.short_us else 1
    few = settings.few * factor
    wanted = few - taken if taken < few else min(settings.usual * factor, settings.many * factor - taken)
    return max(1, int(min(wanted, settings.burst_us / max(expected_us, 1e-3))))


def clock_fault(event_us: float, wall_us: float, settings: TimingSettings = TIMING) -> str:
    """The disagreement of events and wall clock about the same work, as a sentence; empty if they agree."""
    low, high = event_us / settings.wall_disagreement, event_us * settings.wall_disagreement
    if low - settings.wall_slack_us <= wall_us <= high + settings.wall_slack_us:
        return ""
    return (
        f"events say {event_us:.0f} us and the wall clock {wall_us:.0f} us for the same launches: "
        "its time cannot be trusted"
    )


def sets_needed(plan_bytes: int, l2_bytes: int, free_bytes: int, settings: TimingSettings = TIMING) -> int:
    """How many sets of buffers rotate: together more than five times L2, within half of the free memory."""
    size = max(plan_bytes, 1)
    wanted = int(l2_bytes * settings.rotate_bytes_of_l2 / size) + 1
    places = min(settings.places, settings.places_bytes // size)
    room = free_bytes // (2 * 3 * size)  # a set is its buffers and a copy of its inputs
    return max(1, min(max(2, places, wanted), settings.max_sets, room))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


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
        return {**asdict(self), "verdict": str(self.verdict) if self.verdict else None}

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
) -> Comparison:
    """Take pairs until they decide.

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
            return comparison
