"""Numbers for the plots, as columns: what uPlot takes."""

from __future__ import annotations

import math
from typing import Any

from evo_kernel.dashboard.runs import Run
from populations.overview import Overview

AXES = ("evaluations", "hours", "dollars")


def rises(run: Run) -> dict[str, Any]:
    """Best so far against what was spent."""
    return {"runs": [_columns(run.title, run.overview())], "axes": list(AXES)}


def compared(first: Run, second: Run) -> dict[str, Any]:
    return {"runs": [_columns(run.title, run.overview()) for run in (first, second)], "axes": list(AXES)}


def roofline(run: Run, number: int) -> dict[str, Any]:
    """Points by case, in FLOP a byte and FLOP/s, and the ceilings that they lie under."""
    with run.reader() as reader:
        evaluation, cards = reader.candidate(number).evaluation, {case.name: case for case in reader.task.cases}
        limits = run.limits(evaluation.environment, reader.ceilings(evaluation.environment)) if evaluation else {}
    copy = limits.get("copy_bytes/s", 0.0)
    rates = {name: limits.get(f"{name}_flop/s", 0.0) for name in ("bf16", "tf32", "fp32")}
    if evaluation is None or not copy or not all(rates.values()):
        return {"points": [], "roofs": [], "corners": []}
    points = []
    for measured in evaluation.measurements:
        card = cards.get(measured.case)
        if card is None or not card.flops or not card.moved or not measured.median_us > 0:
            continue
        intensity, rate = card.flops / card.moved, card.flops / measured.median_us * 1e6
        roof = min(intensity * copy, max(rates.values()))
        points.append({"case": measured.case, "intensity": intensity, "rate": rate, "roof": roof})
    roofs = [{"name": name, "bytes": copy, "flops": rate} for name, rate in rates.items()]
    return {"points": points, "roofs": roofs, "corners": [rate / copy for rate in rates.values()]}


def _columns(title: str, told: Overview) -> dict[str, Any]:
    """By axis, strictly growing `x` and the best `score` there, with a last point at now."""
    now = {"evaluations": told.evaluations, "hours": told.hours, "dollars": told.dollars}
    columns: dict[str, Any] = {}
    for axis in AXES:
        best: dict[float, float | None] = {}  # several at one place: the last is the best
        for rise in told.rises:
            best[getattr(rise, axis)] = None if math.isnan(rise.score) else rise.score
        if best:
            best[now[axis]] = next(reversed(best.values()))
        columns[axis] = {"x": list(best), "score": list(best.values())}
    return {"title": title, **columns}
