"""What a contextual policy sees of a parent and a strategy: a fixed-length vector, all entries of order one."""

from __future__ import annotations

import math

from evo_kernel.types import Brief, PlanFeatures, Strategy
from operators.macro.catalogue import FAMILIES

NAMES = (
    "bias",
    "share of light (0.5 when not known)",
    "launches beyond one, at most 3, / 3",
    "tensor cores used",
    "wgmma used",
    "cp.async or TMA used",
    "loops in the dominant kernel, at most 4, / 4",
    "spills",
    "log2 of programs / 20",
    "steps from the root, at most 10, / 10",
    "already tried on this lineage",
    *(f"family {family}" for family in FAMILIES),
)


def features(brief: Brief, strategy: Strategy) -> tuple[float, ...]:
    """One entry a name in NAMES."""
    evaluation = brief.parent.evaluation
    plan = evaluation.features if evaluation is not None else None
    shares = [m.light_share for m in evaluation.measurements if m.light_share] if evaluation is not None else []
    light = sum(shares) / len(shares) if shares else 0.5
    done = any(past.name == strategy.name for past in brief.parent.strategies)
    return (
        1.0,
        min(light, 1.5),
        *_plan_part(plan),
        min(brief.parent.generation, 10) / 10,
        float(done),
        *(float(strategy.family == family) for family in FAMILIES),
    )


def _plan_part(plan: PlanFeatures | None) -> tuple[float, ...]:
    kernel = plan.dominant if plan is not None else None
    if plan is None or kernel is None:
        return (0.0,) * 7
    programs = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
    return (
        min(max(plan.launches - 1, 0), 3) / 3,
        float(kernel.tensor_core != "none"),
        float(kernel.tensor_core == "wgmma"),
        float(kernel.data_path != "load"),
        min(kernel.instructions.get("loops", 0), 4) / 4,
        float(kernel.spill_bytes > 0),
        math.log2(max(programs, 1)) / 20,
    )
