"""Sorting by counting: an element's rank is how many come before it. Stable, deterministic, quadratic in the row."""

from __future__ import annotations

import torch

from evo_kernel.tasks.lowering.frames import RowFrame
from evo_kernel.tasks.lowering.layout import LoweredValue, Operand, align
from evo_kernel.tasks.lowering.module import LoweredKernel, LoweredModule
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers
from evo_kernel.tasks.lowering.views import materialise

aten = torch.ops.aten


@lowers(aten.sort, aten.topk)
def sort(module: LoweredModule, node: AtenNode) -> tuple[LoweredValue, LoweredValue]:
    """Values and positions in order; topk keeps the first k ranks."""
    source = materialise(module, node.value(0))
    rank = len(source.shape)
    if rank == 0:
        raise NotLowered("a single number")
    top = node.operation == "aten.topk"
    if top:
        dim, largest = node.integer(2, "dim", -1) % rank, bool(node.argument(3, "largest", True))
    elif node.fx.target is aten.sort.stable:
        dim, largest = node.integer(2, "dim", -1) % rank, bool(node.argument(3, "descending", False))
    else:
        dim, largest = node.integer(1, "dim", -1) % rank, bool(node.argument(2, "descending", False))
    values, indices = node.result
    outs = [module.empty(f"{node.name}_{tail}", fake) for tail, fake in (("values", values), ("indices", indices))]
    pairs = zip(("x", "values", "indices"), (source, *outs), strict=True)
    x, *ys = [align(param, value, value.shape) for param, value in pairs]
    kernel = LoweredKernel("topk" if top else "sort", module)
    rows = RowFrame(kernel, source.shape, [d for d in range(rank) if d != dim], [dim], (x, *ys))
    kept = "mask"
    if top:
        kernel.size("k", outs[0].shape[dim])
        kept = "mask & (rank < k)"

    def at(operand: Operand, index: str) -> str:
        parts = (
            f"{operand.param}_ptr",
            rows.row(operand),
            kernel.term(index, f"{operand.param}_col_stride", operand, dim),
        )
        return " + ".join(part for part in parts if part)

    before = f"(other {'>' if largest else '<'} x) | ((other == x) & (j < start + cols))"
    lines = [
        "rank = tl.zeros([BLOCK], tl.int32)",
        f"for j in range(0, {rows.n}):",
        f"    other = tl.load({at(x, 'j')})",
        f"    rank += ({before}).to(tl.int32)",
        f"tl.store({at(ys[0], 'rank')}, x, mask={kept})",
        f"tl.store({at(ys[1], 'rank')}, start + cols, mask={kept})",
    ]
    rows.loop(lines, [("x", x, "0", "")])
    rows.launch()
    return outs[0], outs[1]
