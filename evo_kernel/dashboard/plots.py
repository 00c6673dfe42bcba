"""Numbers for the plots, as columns: what uPlot takes."""

from __future__ import annotations

from typing import Any

from evo_kernel.dashboard.runs import Overview, Run
from evo_kernel.observe.formatting import against

AXES = ("evaluations", "hours", "dollars")


def best_so_far(*runs: Run) -> dict[str, Any]:
    """Of each run, against what was spent."""
    return {"runs": [_columns(run.title, run.overview()) for run in runs], "axes": list(AXES)}


def _columns(title: str, told: Overview) -> dict[str, Any]:
    """By axis, strictly growing `x` and the best `score` there, with a last point at now."""
    now = {"evaluations": told.evaluations, "hours": told.hours, "dollars": told.status.dollars}
    columns: dict[str, Any] = {}
    for axis in AXES:
        best: dict[float, float | None] = {}  # several at one place: the last is the best
        for rise in told.rises:
            best[rise[axis]] = rise["score"]
        if best:
            best[now[axis]] = next(reversed(best.values()))
        columns[axis] = {"x": list(best), "score": list(best.values())}
    return {"title": title, "against": against(told.status.baselines.values()), **columns}
