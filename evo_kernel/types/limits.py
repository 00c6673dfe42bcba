"""What a population holds: the largest numbers, and the first thing of a verdict that is beyond. One rule for writing
and reading."""

from __future__ import annotations

from collections.abc import Iterator

from evo_kernel.types.evaluations import CheckResult, Evaluation, Measurement, Purpose

MOST_COUNT = 2**31 - 1
MOST_NUMBER = 1e300
"""In size."""
MOST_AMOUNT = 1e100
"""Of a verdict's times, ratios and shares: what is computed from two of them is no larger than MOST_NUMBER."""


def beyond(evaluation: Evaluation) -> str:
    """What is no number that a judge can have found, as a clause; empty where all are. The fields have their types."""
    if unknown := set(evaluation.charged) - {str(purpose) for purpose in Purpose}:
        return f"it is charged to {sorted(unknown)[0]!r}, which is no purpose"
    for name, value in _counts(evaluation):
        if not 0 <= value <= MOST_COUNT:
            return f"{name} is {value}: a count is from 0 to {MOST_COUNT}"
    for name, value in _amounts(evaluation):
        if value is not None and not 0 <= value <= MOST_AMOUNT:
            return f"{name} is {value}: it is from 0 to {MOST_AMOUNT:g}"
    for name, value in _times(evaluation):
        if value is not None and not 1 / MOST_AMOUNT <= value <= MOST_AMOUNT:
            return f"{name} is {value}: it is from {1 / MOST_AMOUNT:g} to {MOST_AMOUNT:g}"
    for one in _checks(evaluation):
        if not one.error >= 0:  # also NaN; infinite where an output is
            return f"the error of {one.case} is {one.error}, which is no error"
    for one in _measurements(evaluation):
        if not all(abs(value) <= MOST_AMOUNT for value in (one.drift or 0, *one.details.values())):
            return f"{one.case} has a number beyond {MOST_AMOUNT:g}"
    for one in evaluation.comparisons:
        if not one.low <= one.ratio <= one.high:
            return f"the ratio of {one.case}, {one.ratio}, is not within its interval, {one.low} to {one.high}"
    return ""


def _measurements(evaluation: Evaluation) -> list[Measurement]:
    return [*evaluation.measurements, *(one.measurement for one in evaluation.verdicts if one.measurement is not None)]


def _checks(evaluation: Evaluation) -> list[CheckResult]:
    return [*evaluation.checks, *(one.check for one in evaluation.verdicts if one.check is not None)]


def _counts(evaluation: Evaluation) -> Iterator[tuple[str, int]]:
    yield from ((f"what is charged to {name}", count) for name, count in evaluation.charged.items())
    yield from ((f"n of {one.case}", one.n) for one in _measurements(evaluation))
    yield from ((f"pairs of {one.case}", one.pairs) for one in evaluation.comparisons)


def _amounts(evaluation: Evaluation) -> Iterator[tuple[str, float | None]]:
    """Those that are not negative."""
    yield from (("gpu_s", evaluation.gpu_s), ("wall_s", evaluation.wall_s))
    for one in _measurements(evaluation):
        for name in ("iqr_us", "light_share", "clock_mhz", "power_w"):
            yield f"{name} of {one.case}", getattr(one, name)


def _times(evaluation: Evaluation) -> Iterator[tuple[str, float | None]]:
    """With their ratios: those that are positive."""
    for one in _measurements(evaluation):
        yield from ((f"{name} of {one.case}", getattr(one, name)) for name in ("median_us", "low_us", "high_us"))
        yield from ((f"{name} of {one.case}", value) for name, value in one.baselines_us.items())
    for one in evaluation.comparisons:
        yield from ((f"{name} of {one.case}", getattr(one, name)) for name in ("ratio", "low", "high", "claimed"))
