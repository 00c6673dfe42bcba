"""Views and constants: no kernels, one line of `run` each, or none. What cannot be a view is a copy elsewhere."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch

from evo_kernel.tasks.lowering.layout import LoweredValue
from evo_kernel.tasks.lowering.module import LoweredModule, contiguous_strides
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers

aten = torch.ops.aten


def view_line(module: LoweredModule, node: AtenNode, source: LoweredValue, call: str) -> LoweredValue:
    """`name = source.call`; a view of a constant stays a constant."""
    if source.fill is not None:
        return LoweredValue.of(node.name, node.result, fill=source.fill)
    module.line(f"{node.name} = {source.name}{call}")
    return LoweredValue.of(node.name, node.result)


@lowers(aten.view, aten._unsafe_view, aten.reshape, aten.expand)
def view(module: LoweredModule, node: AtenNode) -> LoweredValue:
    source, shape = node.value(0), LoweredValue.of("", node.result).shape
    if source.shape == shape:
        return source
    method = "expand" if node.operation == "aten.expand" else "view"
    return view_line(module, node, source, f".{method}({', '.join(map(module.size, shape))})")


@lowers(aten.permute, aten.transpose, aten.unsqueeze, aten.select, aten.diagonal, aten.unfold)
def by_name(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """PyTorch's method of that name with the same numbers."""
    numbers = node.argument(1) if node.operation == "aten.permute" else [node.resolve(a) for a in node.fx.args[1:]]
    named = [f"{name}={node.integer(-1, name)}" for name in node.fx.kwargs]
    texts = [*(module.size(sympy.sympify(number)) for number in numbers), *named]
    return view_line(module, node, node.value(0), f".{node.operation.removeprefix('aten.')}({', '.join(texts)})")


@lowers(aten.t)
def transposed(module: LoweredModule, node: AtenNode) -> LoweredValue:
    flat = len(node.value(0).shape) < 2
    return node.value(0) if flat else view_line(module, node, node.value(0), ".transpose(0, 1)")


@lowers(aten.squeeze)
def squeeze(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """Only what the trace squeezed: the same dimensions for every size."""
    source = node.value(0)
    dims = node.argument(1, "dim", list(range(len(source.shape))))
    dims = [int(dim) % max(len(source.shape), 1) for dim in (dims if isinstance(dims, list) else [dims])]
    gone = [dim for dim in dims if source.shape and source.shape[dim] == 1]
    if not gone:
        return source
    text = str(gone[0]) if len(gone) == 1 else str(tuple(gone))
    return view_line(module, node, source, f".squeeze({text})")


@lowers(aten.slice)
def slice_(module: LoweredModule, node: AtenNode) -> LoweredValue:
    source = node.value(0)
    dim, step = node.integer(1, "dim", 0), node.integer(4, "step", 1)
    dim %= len(source.shape)
    value = LoweredValue.of("", node.result)
    if step == 1 and source.shape[dim] == value.shape[dim]:
        return source
    start, end = node.argument(2, "start", 0), node.argument(3, "end", None)
    start = "" if start in (None, 0) else module.size(sympy.sympify(start))
    end = "" if end is None or end == 2**63 - 1 else module.size(sympy.sympify(end))
    index = f"{start}:{end}" + (f":{step}" if step != 1 else "")
    return view_line(module, node, source, f"[{', '.join([':'] * dim + [index])}]")


@lowers(aten.as_strided)
def as_strided(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """Buffers have the strides that the trace saw, so that its strided views hold for them too."""
    value = LoweredValue.of("", node.result)
    offset = node.argument(3, "storage_offset", None)
    tail = "" if offset is None else f", {module.size(sympy.sympify(offset))}"
    shape, strides = module.shape(value.shape), module.shape(value.strides)
    return view_line(module, node, node.value(0), f".as_strided({shape}, {strides}{tail})")


@lowers(aten.split, aten.split_with_sizes, aten.unbind, aten.chunk)
def split(module: LoweredModule, node: AtenNode) -> tuple[LoweredValue, ...]:
    """Pieces along a dimension, as the trace cut them."""
    source = node.value(0)
    unbind = node.operation == "aten.unbind"
    dim = (node.integer(1, "dim", 0) if unbind else node.integer(2, "dim", 0)) % len(source.shape)
    pieces = []
    start: Any = sympy.Integer(0)
    for index, fake in enumerate(node.result):
        name = f"{node.name}_{index}"
        size = sympy.Integer(1) if unbind else LoweredValue.of("", fake).shape[dim]
        call = f".select({dim}, {index})" if unbind else f".narrow({dim}, {module.size(start)}, {module.size(size)})"
        start = start + size
        if source.fill is None:
            module.line(f"{name} = {source.name}{call}")
        pieces.append(LoweredValue.of(name, fake, fill=source.fill))
    return tuple(pieces)


@lowers(aten.alias, aten.detach, aten.lift_fresh, aten.contiguous)
def alias(module: LoweredModule, node: AtenNode) -> LoweredValue:
    return node.value(0)


@lowers(aten.full, aten.full_like, aten.scalar_tensor, aten.new_full)
def full(module: LoweredModule, node: AtenNode) -> LoweredValue:
    position = 0 if node.operation == "aten.scalar_tensor" else 2 if node.operation == "aten.new_full" else 1
    value = node.argument(position)
    if isinstance(value, sympy.Expr):
        if not value.is_number:
            raise NotLowered("a fill value that depends on sizes")
        value = int(value) if value.is_Integer else float(value)
    return LoweredValue.of(node.name, node.result, fill=value)


@lowers(
    aten.zeros, aten.zeros_like, aten.new_zeros, aten.ones, aten.ones_like, aten.new_ones, aten.empty, aten.empty_like,
    aten.new_empty, aten.empty_strided, aten.new_empty_strided, aten.empty_permuted,
)  # fmt: skip
def filled(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """Nothing may depend on what an empty tensor holds, so zeros will do."""
    return LoweredValue.of(node.name, node.result, fill=int("ones" in node.operation))


def materialise(module: LoweredModule, value: LoweredValue) -> LoweredValue:
    """A constant as a real tensor (a fill in `run`); any other value as it is."""
    if value.fill is None:
        return value
    infinite = isinstance(value.fill, float) and math.isinf(value.fill)
    number = f'float("{value.fill}")' if infinite else repr(value.fill)
    name = module.fresh(value.name)
    module.line(
        f"{name} = torch.full({module.shape(value.shape)}, {number}, dtype={value.dtype}, device={module.device})"
    )
    return LoweredValue(name, value.shape, contiguous_strides(value.shape), value.dtype)
