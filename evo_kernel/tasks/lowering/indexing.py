"""Gather, scatter and their kin; cat, pad, assignment to slices; constants that the reference closes over.

Scatters are deterministic: each output looks for its sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx

from evo_kernel.errors import LoweringError
from evo_kernel.tasks.lowering.extremes import LARGER, SMALLER
from evo_kernel.tasks.lowering.frames import FrameRead, Index, write_map
from evo_kernel.tasks.lowering.layout import LoweredValue, same
from evo_kernel.tasks.lowering.module import LoweredModule, tl_type
from evo_kernel.tasks.lowering.pointwise import compute_type, literal
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers
from evo_kernel.tasks.lowering.views import materialise

aten = torch.ops.aten


@lowers(aten.arange, torch.ops.prims.iota)
def arange(module: LoweredModule, node: AtenNode) -> LoweredValue:
    if node.operation == "prims.iota":
        start, step = node.argument(-1, "start", 0), node.argument(-1, "step", 1)
    else:
        short = node.fx.target is aten.arange.default
        start, step = (0, 1) if short else (node.argument(0), node.argument(2, "step", 1))
    dtype = node.result.dtype
    texts = [module.size(sympy.sympify(value)) for value in (start, step)]
    plain = [text for text, default in zip(texts, ("0", "1"), strict=True) if text != default]
    floating = dtype.is_floating_point

    def compute(names: list[str]) -> tuple[list[str], str]:
        result, rest = names[0], names[1:]
        if floating:
            result = f"{result}.to({tl_type(compute_type(dtype))})"
        if texts[1] != "1":
            result = f"{result} * {rest[-1]}"
        return [], result if texts[0] == "0" else f"{rest[0]} + {result}"

    return write_map(module, "arange", [Index(0)], plain, compute, module.empty(node.name, node.result))


WRAPPED = "tl.where({i} < 0, {i} + {size}, {i})"
"""A negative index counts from the end."""


def fetched(
    module: LoweredModule,
    node: AtenNode,
    name: str,
    source: LoweredValue,
    along: Sequence[int | None],
    indices: Sequence[tuple[FrameRead | Index, str, int]],
) -> LoweredValue:
    """Elements of `source`: where they are `along` (see FrameRead), moved by each index times its dimension's stride.

    `indices`: what is read, its text by `{i}` and `{size}` of the dimension, and the dimension of the source.
    """
    reads = [FrameRead(source, along=along, load=False), *(read for read, _, _ in indices)]
    scalars: list[str] = []
    for _, text, dim in indices:
        scalars += [f"{source.name}.stride({dim})", *([module.size(source.shape[dim])] if "{size}" in text else [])]

    def compute(names: list[str]) -> tuple[list[str], str]:
        numbers, terms = iter(names[len(reads) :]), [names[0]]
        for i, (_, text, _) in zip(names[1:], indices, strict=False):
            stride = next(numbers)
            terms.append(f"{text.format(i=i, size=next(numbers) if '{size}' in text else '')} * {stride}")
        return [f"address = {' + '.join(terms)}"], "tl.load(address, mask=mask)"

    return write_map(module, name, reads, scalars, compute, module.empty(node.name, node.result))


@lowers(aten.gather)
def gather(module: LoweredModule, node: AtenNode) -> LoweredValue:
    source, index = materialise(module, node.value(0)), materialise(module, node.value(2))
    rank = len(source.shape)
    if rank == 0:
        raise NotLowered("a gather from a single number")
    dim = node.integer(1) % rank
    along = [None if d == dim else d for d in range(rank)]
    return fetched(module, node, "gather", source, along, [(FrameRead(index), "{i}", dim)])


@lowers(aten.flip)
def flip(module: LoweredModule, node: AtenNode) -> LoweredValue:
    source = materialise(module, node.value(0))
    rank = len(source.shape)
    dims = sorted({int(dim) % rank for dim in node.argument(1)})
    along = [None if d in dims else d for d in range(rank)]
    return fetched(module, node, "flip", source, along, [(Index(dim), "({size} - 1 - {i})", dim) for dim in dims])


@lowers(aten.index_select)
def index_select(module: LoweredModule, node: AtenNode) -> LoweredValue:
    source = node.value(0)
    indices: list[LoweredValue | None] = [None] * len(source.shape)
    indices[node.integer(1) % len(source.shape)] = node.value(2)
    return take(module, node, "index_select", source, indices)


@lowers(aten.embedding)
def embedding(module: LoweredModule, node: AtenNode) -> LoweredValue:
    return take(module, node, "embedding", node.value(0), [node.value(1)])


@lowers(aten.index, aten._unsafe_index)
def index(module: LoweredModule, node: AtenNode) -> LoweredValue:
    return take(module, node, "index", node.value(0), node.argument(1))


def take(
    module: LoweredModule, node: AtenNode, name: str, source: LoweredValue, indices: Sequence[LoweredValue | None]
) -> LoweredValue:
    """`source[indices]`: index tensors broadcast against each other; None keeps a dimension."""
    source = materialise(module, source)
    given = {dim: materialise(module, value) for dim, value in enumerate(indices) if value is not None}
    if any(value.dtype in (torch.bool, torch.uint8) for value in given.values()):
        raise NotLowered("indexing by a mask")
    rank = max(len(value.shape) for value in given.values())
    dims = sorted(given)
    at = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    rest = [dim for dim in range(len(source.shape)) if dim not in given]
    along = [*rest[:at], *([None] * rank), *rest[at:]]
    found: list[tuple[FrameRead | Index, str, int]] = []
    for dim, value in given.items():
        place: list[int | None] = [None] * len(along)
        for own in range(len(value.shape)):
            if value.shape[own] != 1:
                place[at + rank - len(value.shape) + own] = own
        found.append((FrameRead(value, along=tuple(place)), WRAPPED, dim))
    return fetched(module, node, name, source, along, found)


SCATTERS = {
    "set": "tl.where(hit, {value}, total)",
    "sum": "total + tl.where(hit, {value}, 0)",
    "add": "total + tl.where(hit, {value}, 0)",
    "prod": "total * tl.where(hit, {value}, 1)",
    "multiply": "total * tl.where(hit, {value}, 1)",
}
EXTREMES = {"amax": LARGER, "amin": SMALLER}


def _scatter(
    module: LoweredModule, node: AtenNode, kind: str, place: LoweredValue, source: Any, dim: int
) -> LoweredValue:
    """Every output element walks along `dim` of the index and takes what is meant for it, in order."""
    base, place = materialise(module, node.value(0)), materialise(module, place)
    rank = len(base.shape)
    flat = len(place.shape) == 1  # one index for whole slices, or for single numbers: read as a number
    along = tuple(None if d == dim else d for d in range(rank))
    dtype = compute_type(base.dtype)
    reads: list[FrameRead | Index] = [FrameRead(base, dtype), Index(dim)]
    reads.append(FrameRead(place, along=(None,) * rank if flat else along, load=False))
    scalars = [module.size(place.shape[0 if flat else dim]), f"{place.name}.stride({0 if flat else dim})"]
    tensor = isinstance(source, LoweredValue) and source.fill is None
    if tensor:
        reads.append(FrameRead(source, along=along, load=False))
        scalars.append(f"{source.name}.stride({dim})")
        guarded = "" if rank == 1 else ", mask=inside, other=0"  # a number's load takes no mask of a block
        value = f"tl.load({{source}} + k * {{stride}}{guarded}).to({tl_type(dtype)})"
    else:
        value = literal(source.fill if isinstance(source, LoweredValue) else source, dtype)
    short = [d for d in range(rank) if d != dim and not flat and not same(place.shape[d], base.shape[d])]
    first_bound = len(reads)
    reads += [Index(d) for d in short]  # the index may be smaller than the output
    sizes = [module.size(place.shape[d]) for d in short]

    def compute(names: list[str]) -> tuple[list[str], str]:
        numbers = names[len(reads) :]
        bounds = zip(names[first_bound : len(reads)], numbers[len(numbers) - len(short) :], strict=True)
        inside = " & ".join(["mask", *(f"({position} < {size})" for position, size in bounds)])
        found = value.format(source=names[3], stride=numbers[2]) if tensor else value
        guard = "" if flat else ", mask=inside, other=-1"
        step = [f"    total = {SCATTERS[kind].format(value=found)}"] if kind in SCATTERS else []
        if kind in EXTREMES:
            best = EXTREMES[kind].of("total", "value", dtype)
            step = [f"    value = {found}", f"    total = tl.where(hit, {best}, total)"]
        return [
            f"total = {names[0]}",
            f"inside = {inside}",
            f"for k in range(0, {numbers[0]}):",
            f"    hit = inside & (tl.load({names[2]} + k * {numbers[1]}{guard}) == {names[1]})",
            *step,
        ], "total"

    out = module.empty(node.name, node.result)
    return write_map(module, f"scatter_{kind}", reads, [*scalars, *sizes], compute, out)


@lowers(aten.scatter, aten.scatter_add, aten.scatter_reduce)
def scatter(module: LoweredModule, node: AtenNode) -> LoweredValue:
    kind = "sum" if node.operation == "aten.scatter_add" else node.raw(4, "reduce", "set")
    if kind not in {*SCATTERS, *EXTREMES} or node.raw(-1, "include_self", True) is False:
        raise NotLowered(f"reduce={kind!r} (or include_self=False)")
    source = node.argument(3, "src") if "value" not in node.fx.kwargs else node.argument(-1, "value")
    return _scatter(module, node, kind, node.value(2), source, node.integer(1) % max(len(node.value(0).shape), 1))


@lowers(aten.index_add)
def index_add(module: LoweredModule, node: AtenNode) -> LoweredValue:
    if node.argument(4, "alpha", 1) != 1:
        raise NotLowered("alpha other than 1")
    return _scatter(module, node, "sum", node.value(2), node.value(3), node.integer(1) % len(node.value(0).shape))


@lowers(aten.index_put)
def index_put(module: LoweredModule, node: AtenNode) -> LoweredValue:
    indices, values = node.argument(1), node.value(2)
    given = [(dim, value) for dim, value in enumerate(indices) if value is not None]
    if len(given) == 1 and given[0][1].dtype == torch.bool:
        raise NotLowered("assignment by a mask; write torch.where(mask, a, b)")
    base = node.value(0)
    if len(given) != 1 or len(given[0][1].shape) != 1:
        raise NotLowered("more than one index tensor, or one of several dimensions")
    dim, place = given[0]
    if values.fill is None and len(values.shape) != len(base.shape):
        raise NotLowered("values that broadcast")
    return _scatter(module, node, "sum" if node.argument(3, "accumulate", False) else "set", place, values, dim)


def aten_call(module: LoweredModule, node: AtenNode) -> Any:
    """An operation without a lowering, kept as a call of PyTorch (ALLOW = "mixed")."""

    def text(argument: Any) -> str:
        value = node.resolve(argument)
        if isinstance(value, LoweredValue):
            return materialise(module, value).name
        if isinstance(argument, list | tuple):
            return f"[{', '.join(text(item) for item in argument)}]"
        if isinstance(value, sympy.Expr):
            return module.size(value)
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return f'float("{value}")'
        return module.device if isinstance(value, torch.device) else repr(value)

    arguments = [text(argument) for argument in node.fx.args]
    arguments += [f"{name}={text(value)}" for name, value in node.fx.kwargs.items() if name != "pin_memory"]
    target = node.fx.target
    module.line(f"{node.name} = torch.ops.{target!s}({', '.join(arguments)})")
    if isinstance(node.result, torch.Tensor):
        return LoweredValue.of(node.name, node.result)
    return tuple(LoweredValue.of(f"{node.name}[{i}]", fake) if isinstance(fake, torch.Tensor) else None
                 for i, fake in enumerate(node.result))  # fmt: skip


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
