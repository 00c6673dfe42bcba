"""Which torch operations stayed in a plan, as data and as lines beside its score.

Only under ALLOW = "mixed" can there be any. A runner leaves their names and numbers in a measurement's details
(`fitness/features.py`), beside the share of time that the plan's own kernels take where it knows that.
"""

from __future__ import annotations

from typing import Any

from evo_kernel.types import Evaluation, Measurement

MODELED_BY_BYTES = (
    "the model prices torch operations by the bytes they move only: do not believe a speed-up over them; measure it "
    "on a GPU"
)


def torch_calls(measurement: Measurement) -> dict[str, int]:
    """Operation → calls in the plan of a measurement."""
    return {name: int(n) for name, n in measurement.details.items() if name.startswith("aten.")}


def own_share(measurement: Measurement) -> float | None:
    """Share of the plan's time in its own kernels, 0 to 1; None where the plan was timed as a whole only."""
    return measurement.details.get("own_share")


def mixed_data(evaluation: Evaluation) -> dict[str, Any]:
    """Per case that has any, for scripts."""
    return {
        m.case: {"torch_operations": torch_calls(m), "own_kernels_share": own_share(m)}
        for m in evaluation.measurements
        if torch_calls(m)
    }


def mixed_lines(evaluation: Evaluation) -> list[str]:
    """For people: empty when every operation is in the candidate's own kernels."""
    lines: list[str] = []
    for m in evaluation.measurements:
        calls = torch_calls(m)
        if not calls:
            continue
        named = ", ".join(name.removeprefix("aten.") + (f" ({n} times)" if n > 1 else "") for name, n in calls.items())
        share = own_share(m)
        kind = evaluation.environment.kind
        told = f"{share:.0%} of the time is in its own kernels, {kind}" if share is not None else (
            "the share of its own kernels was not measured apart"
        )  # fmt: skip
        lines.append(f"{m.case}: torch operations left in the plan: {named}; {told}")
    if lines and evaluation.environment.kind == "modeled":
        lines.append(f"note: {MODELED_BY_BYTES}")
    return lines
