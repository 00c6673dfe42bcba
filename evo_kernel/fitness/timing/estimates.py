"""Estimates a time from samples: how many to take, when to stop, how uncertain it is. Pure functions and their
settings.

A sample is the GPU time of one graph replay on a rotated set of inputs, with caches cleared. The reported median has a
95 % interval from order statistics (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2). Event clocks
have steps of about half a microsecond, so equal readings are first spread evenly over one step: the median of grouped
data (Hogg and others, Introduction to Mathematical Statistics). Otherwise a difference of less than 10 % between
kernels of 5 µs could not be measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

JUDGE_VERSION = 13


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
    room = free_bytes // (2 * 3 * size)  # a set is its buffers and a copy of its inputs
    return max(1, min(max(2, wanted), settings.max_sets, room))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
