"""A kernel's times on one case beside its baselines."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evo_kernel.observe.formatting import denominator
from evo_kernel.types import Measurement


@dataclass(frozen=True)
class TimeRow:
    """The kernel itself, or a baseline. Ratios are baseline ÷ kernel, over the interval of the kernel's median."""

    name: str
    us: float
    own: bool = False
    denominator: bool = False
    interval_us: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class CaseTimes:
    name: str
    rows: tuple[TimeRow, ...]
    light_share: float | None
    floor_us: float | None
    terms: tuple[tuple[str, float], ...]  # of modeled times, the longest first


def case_times(measured: Measurement, modeled: bool) -> CaseTimes:
    baselines = {name: us for name, us in measured.baselines_us.items() if us > 0 and math.isfinite(us)}
    fastest, low, high = denominator(baselines), measured.low_us, measured.high_us
    known = math.isfinite(low) and math.isfinite(high) and high > low > 0
    rows = [TimeRow("this kernel", measured.median_us, own=True, interval_us=(low, high) if known else None)]
    for name, us in sorted(baselines.items(), key=lambda item: item[1]):
        ratio = us / measured.median_us if measured.median_us > 0 else None
        interval = (us / high, us / low) if known else None
        rows.append(TimeRow(name, us, denominator=name == fastest, ratio=ratio, ratio_interval=interval))
    terms = sorted(measured.details.items(), key=lambda item: -item[1]) if modeled else []
    shown = tuple(term for term in terms if term[1] > 0)
    return CaseTimes(measured.case, tuple(rows), measured.light_share, measured.floor_us, shown)
