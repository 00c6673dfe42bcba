"""A kernel's times on one case beside its baselines, laid out as rows of a small picture."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from evo_kernel.observe.words import denominator
from evo_kernel.types import Measurement

WIDTH = 200.0  # of the picture, in its own units


@dataclass(frozen=True)
class TimeRow:
    """The kernel itself, or a baseline. Ratios are baseline ÷ kernel, over the interval of the kernel's median."""

    name: str
    us: float
    x: float
    own: bool = False
    denominator: bool = False
    low_us: float | None = None
    high_us: float | None = None
    low_x: float | None = None
    width: float = 0.0
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None


@dataclass(frozen=True)
class CaseTimes:
    name: str
    rows: tuple[TimeRow, ...]
    longest: float  # µs at the right edge
    light_share: float | None
    terms: tuple[tuple[str, float], ...]  # of modeled times, the longest first


def case_times(measured: Measurement, modeled: bool) -> CaseTimes:
    baselines = {name: us for name, us in measured.baselines_us.items() if us > 0 and math.isfinite(us)}
    times = [us for us in (measured.median_us, measured.high_us, *baselines.values()) if math.isfinite(us)]
    longest = 1.02 * max(times, default=1.0) or 1.0
    fastest = denominator(baselines)
    rows = [_own(measured, longest)]
    rows += [
        _baseline(measured, name, us, longest, name == fastest)
        for name, us in sorted(baselines.items(), key=lambda item: item[1])
    ]
    terms = sorted(measured.details.items(), key=lambda item: -item[1]) if modeled else []
    shown = tuple(term for term in terms if term[1] > 0)
    return CaseTimes(measured.case, tuple(rows), longest, measured.light_share, shown)


def _own(measured: Measurement, longest: float) -> TimeRow:
    low, high, scale = measured.low_us, measured.high_us, WIDTH / longest
    row = TimeRow("this kernel", measured.median_us, _finite(measured.median_us) * scale, own=True)
    if not (math.isfinite(low) and math.isfinite(high)):
        return row
    return replace(row, low_us=low, high_us=high, low_x=low * scale, width=(high - low) * scale)


def _baseline(measured: Measurement, name: str, us: float, longest: float, fastest: bool) -> TimeRow:
    ratios = [us / time if time > 0 else math.nan for time in (measured.median_us, measured.high_us, measured.low_us)]
    row = TimeRow(name, us, us / longest * WIDTH, denominator=fastest)
    return replace(row, ratio=ratios[0], ratio_low=ratios[1], ratio_high=ratios[2])


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
