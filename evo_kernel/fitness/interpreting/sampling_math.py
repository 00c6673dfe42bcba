"""From a sample of programs to all of them: how many different lines they touch together. Pure functions."""

from __future__ import annotations

import math


def is_disjoint(different: float, sampled: int) -> bool:
    """Whether `sampled` programs touch lines of their own, but for a line here and there where two of them meet."""
    return different >= sampled - 0.25


def expand(different: float, sampled: int, count: int) -> float:
    """Footprints' worth of different lines that `count` programs touch, when `sampled` of them touch `different`."""
    if sampled < 2 or is_disjoint(different, sampled):
        return float(count)
    low, high = max(different, 1.0), 1e12
    for _ in range(80):
        middle = math.sqrt(low * high)
        if -math.expm1(sampled * math.log1p(-1 / max(middle, 1.0 + 1e-12))) * middle < different:
            low = middle
        else:
            high = middle
    return -math.expm1(count * math.log1p(-1 / max(high, 1.0 + 1e-12))) * high
