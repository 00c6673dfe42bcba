"""Sorting by counting: an element's rank is how many come before it. Stable, deterministic, quadratic in the row."""

from __future__ import annotations

import torch

from evo_kernel.tasks.lowering.frames import RowFrame
from evo_kernel.tasks.lowering.layout import LoweredValue, Operand, align
from evo_kernel.tasks.lowering.module import LoweredModule
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
    first = 2 if top or node.fx.target is aten.sort.stable else 1
    dim = node.integer(first, "dim", -1) % rank
    largest = bool(node.argument(first + 1, "largest" if top else "descending", top))
    values, indices = node.result
    outs = [module.empty(f"{node.name}_{tail}", fake) for tail, fake in (("values", values), ("indices", indices))]
    ys = [align(param, value, value.shape) for param, value in zip(("values", "indices"), outs, strict=True)]
    rows = RowFrame(module, "topk" if top else "sort", source, [dim], ys, source.dtype)
    kernel = rows.kernel
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
    rows.loop(
        "rank = tl.zeros([BLOCK], tl.int32)",
        f"for j in range(0, {rows.n}):",
        f"    other = tl.load({at(rows.x, 'j')})",
        f"    rank += ({before}).to(tl.int32)",
        f"tl.store({at(ys[0], 'rank')}, x, mask={kept})",
        f"tl.store({at(ys[1], 'rank')}, start + cols, mask={kept})",
    )
    rows.launch()
    return outs[0], outs[1]
