"""Turning samples into a time: how many, when to stop, and how sure. Pure functions; parameters in one place.

A sample is the GPU time of one graph replay with a cold L2 on a rotated set of inputs. The median is reported with a
95 % interval from order statistics (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

JUDGE_VERSION = 2


@dataclass(frozen=True)
class TimingSettings:
    """How closely the clock looks. Search asks little, promotion and claims ask much."""

    warmup: int = 3  # replays before the first sample
    few: int = 5  # samples that are always taken
    many: int = 25  # at most, in search
    enough: float = 0.01  # stop once the interval's half-width is below this share of the median
    rotate_bytes_of_l2: float = 5.0  # inputs rotate over at least this many times the L2
    flush_bytes_of_l2: float = 2.0
    max_sets: int = 24
    wall_disagreement: float = 1.5  # events against synchronised wall time


@dataclass(frozen=True)
class Summary:
    """What a list of samples says, in µs."""

    median_us: float
    iqr_us: float
    low_us: float
    high_us: float
    n: int


def summarise(samples_us: Sequence[float]) -> Summary:
    """Median, interquartile range and the 95 % interval of the median."""
    ordered = sorted(samples_us)
    n = len(ordered)
    if n == 0:
        raise ValueError("no samples")
    reach = 1.96 * math.sqrt(n) / 2
    low = ordered[max(0, math.floor(n / 2 - reach))]
    high = ordered[min(n - 1, math.ceil(n / 2 + reach) - 1)]
    return Summary(_quantile(ordered, 0.5), _quantile(ordered, 0.75) - _quantile(ordered, 0.25), low, high, n)


def settled(samples_us: Sequence[float], settings: TimingSettings) -> bool:
    """Whether more samples would change no decision in search."""
    if len(samples_us) < settings.few:
        return False
    if len(samples_us) >= settings.many:
        return True
    found = summarise(samples_us)
    return (found.high_us - found.low_us) / 2 <= settings.enough * found.median_us


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
