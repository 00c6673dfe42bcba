"""Putting tensors together: cat, pad, assignment to slices, and constants that the reference closes over."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx

from evo_kernel.errors import LoweringError
from evo_kernel.tasks.lowering.frames import FrameRead, Index, write_map
from evo_kernel.tasks.lowering.layout import LoweredValue
from evo_kernel.tasks.lowering.module import LoweredModule
from evo_kernel.tasks.lowering.pointwise import compute_type, literal
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers
from evo_kernel.tasks.lowering.views import materialise

aten = torch.ops.aten
CONSTANT_AT_MOST = 64
"""Elements of a constant tensor that become part of a kernel's text."""


def copy_into(module: LoweredModule, source: LoweredValue, target: LoweredValue) -> None:
    """Copy (and cast) `source`, broadcast, to the view `target`."""
    if source.fill is not None:
        text = literal(source.fill, target.dtype)
        write_map(module, "fill", [], [], lambda names: ([], text), target)
        return
    dtype = target.dtype if target.dtype != torch.bool else source.dtype
    result = "{} != 0" if target.dtype == torch.bool != source.dtype else "{}"
    write_map(module, "copy", [FrameRead(source, dtype)], [], lambda names: ([], result.format(names[0])), target)


def part_of(module: LoweredModule, whole: LoweredValue, dim: int, start: Any, size: Any) -> LoweredValue:
    """`whole.narrow(dim, start, size)` as a value."""
    narrow = f"{whole.name}.narrow({dim}, {module.size(start)}, {module.size(size)})"
    name = module.named(f"{whole.name}_part", narrow)
    shape = (*whole.shape[:dim], sympy.sympify(size), *whole.shape[dim + 1 :])
    return LoweredValue(name, shape, whole.strides, whole.dtype)


@lowers(aten.cat)
def cat(module: LoweredModule, node: AtenNode) -> LoweredValue:
    pieces = [piece for piece in node.argument(0) if piece.shape != (0,)]
    dim = node.integer(1, "dim", 0) % len(pieces[0].shape)
    out = module.empty(node.name, node.result)
    start: Any = sympy.Integer(0)
    for piece in pieces:
        copy_into(module, piece, part_of(module, out, dim, start, piece.shape[dim]))
        start = start + piece.shape[dim]
    return out


@lowers(aten.constant_pad_nd)
def pad(module: LoweredModule, node: AtenNode) -> LoweredValue:
    source, pads, value = node.value(0), node.argument(1), node.argument(2, "value", 0)
    if any(sympy.sympify(amount).is_negative for amount in pads):
        raise NotLowered("negative padding")
    filled = LoweredValue.of(node.name, node.result, fill=value)
    module.taken.discard(node.name)
    out = part = materialise(module, filled)
    for pair in range(len(pads) // 2):
        dim = len(source.shape) - 1 - pair
        if pads[2 * pair] != 0 or pads[2 * pair + 1] != 0:
            part = part_of(module, part, dim, sympy.sympify(pads[2 * pair]), source.shape[dim])
    copy_into(module, source, part)
    return out


@lowers(aten.slice_scatter, aten.select_scatter)
def slice_scatter(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """A copy of the whole, then the part over it."""
    base, source = node.value(0), node.value(1)
    dim = node.integer(2, "dim", 0) % len(base.shape)
    out = module.empty(node.name, node.result)
    copy_into(module, base, out)
    if node.operation == "aten.select_scatter":
        part = part_of(module, out, dim, sympy.sympify(node.argument(3)), sympy.Integer(1))
        name = (
            source.name
            if source.fill is not None
            else module.named(f"{source.name}_row", f"{source.name}.unsqueeze({dim})")
        )
        shape = (*source.shape[:dim], sympy.Integer(1), *source.shape[dim:])
        strides = (*source.strides[:dim], sympy.Integer(0), *source.strides[dim:])
        copy_into(module, LoweredValue(name, shape, strides, source.dtype, source.fill), part)
        return out
    start, step = node.argument(3, "start", 0), node.integer(5, "step", 1)
    if step != 1:
        raise NotLowered("assignment to a slice with a step")
    copy_into(module, source, part_of(module, out, dim, sympy.sympify(start or 0), source.shape[dim]))
    return out


def constant(module: LoweredModule, node: fx.Node, tensor: torch.Tensor) -> LoweredValue:
    """A tensor that the reference closes over: a number, a fill, or a short table inside a kernel."""
    flat = tensor.reshape(-1).tolist()
    name = module.fresh(node.name.strip("_"))
    if not flat:
        return module.empty(name, tensor)
    if all(item == flat[0] for item in flat):
        return LoweredValue.of(name, tensor, fill=flat[0])
    if len(flat) > CONSTANT_AT_MOST:
        raise LoweringError(
            f"The reference closes over a constant tensor of {len(flat)} elements; up to {CONSTANT_AT_MOST} become "
            "part of a kernel. Make it one of the task's inputs."
        )
    out = module.empty(name, tensor)
    first, *others = (literal(value, compute_type(tensor.dtype)) for value in flat)
    flat_out = LoweredValue(out.name, (sympy.Integer(len(flat)),), (sympy.Integer(1),), out.dtype)

    def compute(names: list[str]) -> tuple[list[str], str]:
        lines = [f"value = tl.where({names[0]} == {k}, {value}, value)" for k, value in enumerate(others, 1)]
        return [f"value = {names[0]} * 0 + {first}", *lines], "value"

    write_map(module, "table", [Index(0)], [], compute, flat_out)
    return out
