"""Slicing rules for operations that move elements: views, concatenations, pads and constant fills."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.regions import Index, Region
from evo_kernel.fitness.correctness.slicing.step import (
    Known,
    SliceStep,
    aligned,
    listed,
    normal,
    put,
    replaced,
    rule,
    widened,
)
from evo_kernel.fitness.correctness.slicing.tracing import NotSliceable, TraceValue

_FILLS = {"zeros": 0, "ones": 1, "empty": 0}


@rule("view reshape _unsafe_view _reshape_alias view_copy _reshape_copy")
def _view(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,) = value.node.values
    if "dtype" in value.node.arguments:  # the same bytes as another dtype
        return _reinterpreted(value, source, region)
    return reshaped(value, source, region)


def reshaped(value: TraceValue, source: TraceValue, region: Region) -> SliceStep:
    """The region of `source` in another shape with the same order of elements."""
    if 0 in source.shape:
        return SliceStep([], lambda: torch.empty(regions.shape_of(region), dtype=value.dtype))
    wanted: list[Index] = []
    local: list[Index] = []
    for before, after in regions.dimension_groups(source.shape, value.shape):
        sizes = [source.shape[d] for d in before]
        indices, places = _through(sizes, [region[d] for d in after], [value.shape[d] for d in after])
        wanted += indices
        local.append(places)
    shape = regions.shape_of(region)
    lengths = [math.prod(map(len, group)) for group in _grouped(wanted, source.shape, value.shape)]

    def compute(piece: torch.Tensor) -> torch.Tensor:
        return regions.take(piece.reshape(lengths), tuple(local)).reshape(shape)

    return SliceStep([(source, tuple(wanted))], compute)


def _grouped(indices: Sequence[Index], before: Sequence[int], after: Sequence[int]) -> list[list[Index]]:
    return [[indices[d] for d in group] for group, _ in regions.dimension_groups(before, after)]


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
    uniques = [along.unique(return_inverse=True) for along in regions.coordinates(numbers, sizes)]
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


def _reinterpreted(value: TraceValue, source: TraceValue, region: Region) -> SliceStep:
    if value.shape != source.shape:
        raise NotSliceable("it views numbers as numbers of another width")
    return SliceStep([(source, region)], lambda piece: piece.contiguous().view(value.dtype))


@rule("permute permute_copy")
def _permute(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,) = value.node.values
    return _permuted(source, region, listed(value.node.arguments["dims"], len(region)))


@rule("transpose transpose_copy")
def _transpose(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,), arguments = value.node.values, value.node.arguments
    order = list(range(len(region)))
    if order:
        a, b = (normal(arguments[name], len(order)) for name in ("dim0", "dim1"))
        order[a], order[b] = b, a
    return _permuted(source, region, order)


@rule("t t_copy numpy_T")
def _t(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,) = value.node.values
    return _permuted(source, region, list(range(len(region)))[::-1])


def _permuted(source: TraceValue, region: Region, order: Sequence[int]) -> SliceStep:
    wanted = [region[order.index(dim)] for dim in range(len(order))]
    return SliceStep([(source, tuple(wanted))], lambda piece: piece.permute(*order) if order else piece)


@rule("expand expand_copy")
def _expand(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,) = value.node.values
    return SliceStep([(source, aligned(source, region))], lambda piece: piece.expand(regions.shape_of(region)))


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


@rule("slice slice_copy")
def _slice(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,), arguments = value.node.values, value.node.arguments
    dim = normal(arguments["dim"], len(region))
    return _moved(source, region, dim, _sliced(arguments, source.shape[dim]))


def _sliced(arguments: Mapping[str, Any], size: int) -> range:
    return range(size)[slice(arguments["start"], arguments["end"], arguments["step"])]


def _moved(source: TraceValue, region: Region, dim: int, index: Index) -> SliceStep:
    """The region of the elements at `index` along one dimension."""
    return SliceStep([(source, replaced(region, dim, regions.chosen(index, region[dim])))], lambda piece: piece)


@rule("split split_copy split_with_sizes split_with_sizes_copy chunk unsafe_split unsafe_chunk unsafe_split_with_sizes")
def _split(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,) = value.node.values
    dim = normal(value.node.arguments["dim"], len(region))
    start = sum(shape[dim] for shape, _ in value.node.results[: value.number])
    return _moved(source, region, dim, range(start, start + value.shape[dim]))


@rule("select select_copy")
def _select(value: TraceValue, region: Region, known: Known) -> SliceStep:
    arguments = value.node.arguments
    return _selected(value, region, arguments["dim"], arguments["index"])


@rule("unbind unbind_copy")
def _unbind(value: TraceValue, region: Region, known: Known) -> SliceStep:
    return _selected(value, region, value.node.arguments["dim"], value.number)


def _selected(value: TraceValue, region: Region, dim: int, place: int) -> SliceStep:
    (source,) = value.node.values
    dim = normal(dim, len(source.shape))
    place = range(source.shape[dim])[place]
    wanted = (*region[:dim], range(place, place + 1), *region[dim:])
    return SliceStep([(source, wanted)], lambda piece: piece.squeeze(dim))


@rule("unsqueeze unsqueeze_copy")
def _unsqueeze(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,) = value.node.values
    dim = normal(value.node.arguments["dim"], len(region))
    return SliceStep([(source, (*region[:dim], *region[dim + 1 :]))], lambda piece: piece.unsqueeze(dim))


@rule("squeeze squeeze_copy")
def _squeeze(value: TraceValue, region: Region, known: Known) -> SliceStep:
    (source,) = value.node.values
    dims = listed(value.node.arguments.get("dim"), len(source.shape))
    left = iter(region)
    gone = [d in dims and size == 1 for d, size in enumerate(source.shape)]
    wanted = tuple(range(1) if is_gone else next(left) for is_gone in gone)
    return SliceStep([(source, wanted)], lambda piece: piece.reshape(regions.shape_of(region)))


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
    return _joined(value, region, dim, parts)


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


def _joined(value: TraceValue, region: Region, dim: int, parts: Sequence[TraceValue]) -> SliceStep:
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


@rule("slice_scatter")
def _slice_scatter(value: TraceValue, region: Region, known: Known) -> SliceStep:
    target, source = value.node.values
    dim = normal(value.node.arguments["dim"], len(region))
    return _overwritten(target, source, region, dim, _sliced(value.node.arguments, target.shape[dim]))


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
