"""Slicing rules for operations that move elements: views, concatenations, pads and constant fills."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.regions import Index, Region
from evo_kernel.fitness.correctness.slicing.rules import (
    Known,
    SliceStep,
    normal,
    put,
    replaced,
    result_of,
    rule,
    widened,
)
from evo_kernel.fitness.correctness.slicing.tracing import NotSliceable, TraceValue

_FILLS = {"zeros": 0, "ones": 1, "empty": 0}


@rule("view reshape _unsafe_view _reshape_alias view_copy _reshape_copy")
def _view(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,) = value.node.values
    if "dtype" in value.node.arguments:  # the same bytes as another dtype
        if value.shape != source.shape:
            raise NotSliceable("it views numbers as numbers of another width")
        return SliceStep([(source, region)], lambda piece: piece.contiguous().view(value.dtype))
    if 0 in source.shape:
        return SliceStep([], lambda: torch.empty(regions.shape_of(region), dtype=value.dtype))
    wanted: list[Index] = []
    local: list[Index] = []
    groups = regions.dimension_groups(source.shape, value.shape)
    for before, after in groups:
        sizes = [source.shape[d] for d in before]
        indices, places = _through(sizes, [region[d] for d in after], [value.shape[d] for d in after])
        wanted += indices
        local.append(places)
    shape = regions.shape_of(region)
    lengths = [math.prod(len(wanted[dim]) for dim in before) for before, _ in groups]

    def compute(piece: torch.Tensor) -> torch.Tensor:
        return regions.take(piece.reshape(lengths), tuple(local)).reshape(shape)

    return SliceStep([(source, tuple(wanted))], compute)


def _through(sizes: Sequence[int], wanted: Sequence[Index], shape: Sequence[int]) -> tuple[list[Index], Index]:
    """Positions needed along dimensions of these sizes for a region of the same elements in another shape.

    Second, the positions of the wanted elements among them, both flattened.
    """
    if all(map(regions.is_whole, wanted, shape)):
        return [range(size) for size in sizes], range(math.prod(sizes))
    if len(sizes) == len(wanted) == 1:
        return [wanted[0]], range(len(wanted[0]))
    if (simple := _merged(sizes, wanted, shape)) is not None:
        return simple
    numbers = regions.flat_of(tuple(wanted), shape)
    uniques = [along.unique(return_inverse=True) for along in torch.unravel_index(numbers, tuple(sizes))]
    places = torch.zeros_like(numbers)
    for unique, inverse in uniques:
        places = places * unique.numel() + inverse
    return [regions.index_of(unique) for unique, _ in uniques], regions.index_of(places)


def _merged(sizes: Sequence[int], wanted: Sequence[Index], shape: Sequence[int]) -> tuple[list[Index], Index] | None:
    """The same if only one dimension changes and the others are whole or of size 1: no element is inspected."""
    if len(wanted) == 1 and isinstance(wanted[0], range) and wanted[0].step == 1 and sizes:  # one dimension is split
        inner = math.prod(sizes[1:])
        start, stop = wanted[0].start, wanted[0].stop
        if inner and start % inner == 0 and stop % inner == 0:
            indices: list[Index] = [range(start // inner, stop // inner), *(range(size) for size in sizes[1:])]
            return indices, range(stop - start)
    if len(sizes) == 1 and all(map(regions.is_whole, wanted[1:], shape[1:])) and isinstance(wanted[0], range):
        inner = math.prod(shape[1:])
        if wanted[0].step == 1:
            return [range(wanted[0].start * inner, wanted[0].stop * inner)], range(len(wanted[0]) * inner)
    return None


_STRIDED = "permute transpose t numpy_T expand slice split split_with_sizes chunk select unbind unsqueeze squeeze"


@rule(" ".join(f"{name} {name}_copy unsafe_{name}" for name in _STRIDED.split()))
def _strided(value: TraceValue, region: Region, known: Known) -> SliceStep:
    """A view each of whose dimensions walks along one dimension of the source, or repeats it.

    Which ones, and from where, is read off the strides of the same view of a tensor without data.
    """
    (source,) = value.node.values
    if 0 in source.shape or 0 in value.shape:
        whole = [(source, regions.everything(source.shape))]
        return SliceStep(whole, lambda piece: regions.take(result_of(value, value.node.call([piece])), region))
    view = getattr(torch.ops.aten, value.node.name.removesuffix("_copy").removeprefix("unsafe_"))
    blank = torch.empty(source.shape, device="meta")
    made = result_of(value, value.node.call([blank], getattr(view, value.node.func._overloadname)))
    offset, firsts = int(made.storage_offset()), dict[int, int]()  # by dimensions of the source, outer ones first
    for dim, size in enumerate(source.shape):
        if size > 1:
            firsts[dim], offset = divmod(offset, blank.stride(dim))
    wanted: list[Index] = [range(firsts.get(dim, 0), firsts.get(dim, 0) + 1) for dim in range(len(source.shape))]
    walked: dict[int, int] = {}  # dimensions of the source by those of the view
    for dim, (size, stride) in enumerate(zip(made.shape, made.stride(), strict=True)):
        if size > 1 and stride:
            own = walked[dim] = next(d for d in firsts if blank.stride(d) <= stride)
            step = stride // blank.stride(own)
            wanted[own] = regions.chosen(range(firsts[own], firsts[own] + step * size, step), region[dim])
    order = [*walked.values(), *(dim for dim in range(len(source.shape)) if dim not in walked.values())]
    lengths = [len(index) if dim in walked else 1 for dim, index in enumerate(region)]

    def compute(piece: torch.Tensor) -> torch.Tensor:
        return piece.permute(order).reshape(lengths).expand(regions.shape_of(region))

    return SliceStep([(source, tuple(wanted))], compute)


@rule("repeat")
def _repeat(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,) = value.node.values
    extra = len(region) - len(source.shape)
    folded = [
        regions.covering(
            index if regions.is_whole(index, size) else regions.index_of(regions.positions(index) % max(1, size))
        )
        for index, size in zip(region[extra:], source.shape, strict=True)
    ]
    inside = tuple(places for _, places in folded)

    def compute(piece: torch.Tensor) -> torch.Tensor:
        return regions.take(piece, inside).expand(regions.shape_of(region))

    return SliceStep([(source, tuple(index for index, _ in folded))], compute)


@rule("unfold unfold_copy")
def _unfold(value: TraceValue, region: Region, known: Known) -> SliceStep:
    """Windows along one dimension, which then counts windows; the last dimension is the position in the window."""
    (source,), arguments = value.node.values, value.node.arguments
    if not source.shape:
        return SliceStep([(source, ())], lambda piece: piece.unfold(0, arguments["size"], arguments["step"]))
    dim = normal(arguments["dimension"], len(source.shape))
    starts = regions.positions(region[dim]) * arguments["step"]
    unique, inverse = (starts[:, None] + regions.positions(region[-1])).unique(return_inverse=True)

    def compute(piece: torch.Tensor) -> torch.Tensor:
        return piece.index_select(dim, inverse.flatten()).unflatten(dim, inverse.shape).movedim(dim + 1, -1)

    return SliceStep([(source, replaced(region[:-1], dim, regions.index_of(unique)))], compute)


@rule("cat")
def _cat(value: TraceValue, region: Region, known: Known) -> SliceStep:
    dim = normal(value.node.arguments["dim"], len(region))
    parts = [part for part in value.node.values if part.shape != (0,) or len(region) == 1]
    ends = list(itertools.accumulate(part.shape[dim] for part in parts))
    wanted = regions.positions(region[dim])
    needs, places = [], []
    for part, end in zip(parts, ends, strict=True):
        start = end - part.shape[dim]
        inside = ((wanted >= start) & (wanted < end)).nonzero().flatten()
        if inside.numel():
            needs.append((part, replaced(region, dim, regions.index_of(wanted[inside] - start))))
            places.append(regions.index_of(inside))
    shape = regions.shape_of(region)

    def compute(*pieces: torch.Tensor) -> torch.Tensor:
        result = torch.empty(shape, dtype=value.dtype)
        for piece, place in zip(pieces, places, strict=True):
            put(result, replaced([range(size) for size in shape], dim, place), piece.to(value.dtype))
        return result

    return SliceStep(needs, compute)


@rule("stack")
def _stack(value: TraceValue, region: Region, known: Known) -> SliceStep:
    dim = normal(value.node.arguments["dim"], len(region))
    wanted = regions.positions(region[dim]).tolist()
    numbers = sorted(set(wanted))
    rest = (*region[:dim], *region[dim + 1 :])
    order = [numbers.index(number) for number in wanted]
    return SliceStep(
        [(value.node.values[number], rest) for number in numbers],
        lambda *pieces: torch.stack([pieces[place] for place in order], dim),
    )


@rule("slice_scatter")
def _slice_scatter(value: TraceValue, region: Region, known: Known) -> SliceStep:
    target, source = value.node.values
    dim = normal(value.node.arguments["dim"], len(region))
    ends = slice(*(value.node.arguments[name] for name in ("start", "end", "step")))
    return _overwritten(target, source, region, dim, range(target.shape[dim])[ends])


@rule("select_scatter")
def _select_scatter(value: TraceValue, region: Region, known: Known) -> SliceStep:
    target, source = value.node.values
    dim = normal(value.node.arguments["dim"], len(region))
    place = range(target.shape[dim])[value.node.arguments["index"]]
    return _overwritten(target, source, region, dim, range(place, place + 1))


def _overwritten(target: TraceValue, source: TraceValue, region: Region, dim: int, written: range) -> SliceStep:
    """`target`, except where `source` overwrites it along one dimension (which `source` may lack)."""
    wanted = regions.positions(region[dim])
    is_new = torch.isin(wanted, regions.positions(written))
    new, old = (regions.index_of(chosen.nonzero().flatten()) for chosen in (is_new, ~is_new))
    within = regions.places_in(written, regions.chosen(region[dim], new)) if len(new) else new
    lacks = len(source.shape) < len(region)
    of_source = (*region[:dim], *region[dim + 1 :]) if lacks else replaced(region, dim, within)
    of_target = replaced(region, dim, regions.chosen(region[dim], old))
    if not len(new):
        return SliceStep([(target, region)], lambda piece: piece)
    if not len(old):
        return SliceStep([(source, of_source)], lambda piece: piece.unsqueeze(dim) if lacks else piece)
    shape = regions.shape_of(region)

    def compute(kept: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
        result = torch.empty(shape, dtype=kept.dtype)
        whole = [range(size) for size in shape]
        put(result, replaced(whole, dim, old), kept)
        put(result, replaced(whole, dim, new), written.unsqueeze(dim) if lacks else written)
        return result

    return SliceStep([(target, of_target), (source, of_source)], compute)


@rule("constant_pad_nd")
def _pad(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,), arguments = value.node.values, value.node.arguments
    before = [0] * len(region)
    for number, amount in enumerate(arguments["pad"][::2]):
        before[len(region) - 1 - number] = amount
    wanted, places = [], []
    for index, size, amount in zip(region, source.shape, before, strict=True):
        inner = regions.positions(index) - amount
        inside = ((inner >= 0) & (inner < size)).nonzero().flatten()
        wanted.append(regions.index_of(inner[inside]))
        places.append(regions.index_of(inside))
    is_empty = not all(map(len, wanted))

    def compute(*pieces: torch.Tensor) -> torch.Tensor:
        result = torch.full(regions.shape_of(region), arguments["value"] or 0, dtype=value.dtype)
        for piece in pieces:
            put(result, tuple(places), piece)
        return result

    return SliceStep([] if is_empty else [(source, tuple(wanted))], compute)


@rule("tril triu")
def _triangle(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,), diagonal = value.node.values, value.node.arguments["diagonal"]
    rows, columns = region[-2:]
    is_lower = value.node.name == "tril"

    def compute(piece: torch.Tensor) -> torch.Tensor:
        above = regions.positions(columns) - regions.positions(rows)[:, None]
        return torch.where(above <= diagonal if is_lower else above >= diagonal, piece, zero)

    zero = torch.zeros((), dtype=value.dtype)
    return SliceStep([(source, region)], compute)


@rule(" ".join(f"{name} {name}_like new_{name}" for name in ("zeros", "ones", "empty", "full")) + " empty_strided")
def _filled(value: TraceValue, region: Region, known: Known) -> SliceStep:
    name = value.node.name.removeprefix("new_").removesuffix("_like").removesuffix("_strided")
    fill = value.node.arguments["fill_value"] if name == "full" else _FILLS[name]
    return SliceStep([], lambda: torch.full(regions.shape_of(region), fill, dtype=value.dtype))


@rule("as_strided as_strided_copy as_strided_scatter")
def _as_strided(value: TraceValue, region: Region, known: Known) -> SliceStep:
    raise NotSliceable("it reads memory by strides")


@rule("arange")
def _arange(value: TraceValue, region: Region, known: Known) -> SliceStep:
    whole = widened(value, region, [0])
    return whole or SliceStep([], lambda: value.node.call([]))
