"""What torch operations of a plan move and compute, by the shapes of their tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evo_kernel.fitness.plan.launch_plan import Aten, Constant, Copy, Fill, View

_KINDS = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8",
          "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}  # fmt: skip


@dataclass(frozen=True)
class TorchCost:
    """One node that is no kernel launch."""

    moved_bytes: float  # read and written
    flops: float = 0.0  # of matrix products
    kind: str = ""  # of their operands, as tl.dot's


def torch_cost(node: Fill | Copy | Constant | Aten) -> TorchCost:
    """Bytes of all views, and the operations of products, convolutions and attention by torch's own formulas."""
    if isinstance(node, Aten):
        views = (*node.views, *(v for v in node.outputs if v))
    else:
        views = (node.source, node.target) if isinstance(node, Copy) else (node.view,)
    moved = float(sum(view.elements * view.item_bytes for view in views))
    flops = _flops(node) if isinstance(node, Aten) else 0.0
    return TorchCost(moved, flops, _KINDS.get(node.views[0].dtype, "fp32") if isinstance(node, Aten) and flops else "")


def _flops(node: Aten) -> float:
    """0 for an operation without a formula, and for arguments that do not fit it: what runs the operation tells."""
    import torch
    from torch.utils.flop_counter import flop_registry

    def empty(view: View) -> torch.Tensor:
        return torch.empty(view.shape, device="meta")

    def value(told: Any) -> Any:
        if isinstance(told, dict):
            return empty(node.views[told["view"]]) if "view" in told else None
        return [value(one) for one in told] if isinstance(told, list) else told

    formula = flop_registry.get(getattr(torch.ops.aten, node.op.split(".")[1].rstrip("_"), None))
    outputs = [empty(view) for view in node.outputs if view]
    if formula is None or not outputs:
        return 0.0
    named = {name: value(told) for name, told in node.kwargs.items()}
    try:
        return max(0.0, float(formula(*value(node.args), **named, out_val=outputs if outputs[1:] else outputs[0])))
    except Exception:  # noqa: BLE001 (arguments as a candidate made them)
        return 0.0
