"""Numbers for the plots, as columns: what uPlot takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from evo_kernel.dashboard.runs import Run
from populations.overview import Overview

AXES = ("evaluations", "hours", "dollars")


def rises(run: Run) -> dict[str, Any]:
    """Best so far against what was spent, with a last point at now."""
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
    columns: dict[str, Sequence[Any]] = {axis: [getattr(rise, axis) for rise in told.rises] for axis in AXES}
    scores = [None if math.isnan(rise.score) else rise.score for rise in told.rises]
    candidates = [rise.candidate for rise in told.rises]
    if told.rises:
        for axis, now in (("evaluations", told.evaluations), ("hours", told.hours), ("dollars", told.dollars)):
            columns[axis] = [*columns[axis], now]
        scores, candidates = [*scores, scores[-1]], [*candidates, candidates[-1]]
    return {"title": title, **columns, "score": scores, "candidate": candidates}
