"""Slicing rules for gathers, embeddings, indexing and scatters.

Indices that depend on integer inputs only are known when slices are planned, so only the elements that they select are
needed. For indices that depend on floating-point values, all elements that they may select are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.regions import Region
from evo_kernel.fitness.correctness.slicing.rules import Known, SliceStep, aligned, normal, replaced, rule, widened
from evo_kernel.fitness.correctness.slicing.tracing import TraceValue


@rule("gather")
def _gather(value: TraceValue, region: Region, known: Known) -> SliceStep:
    source, index = value.node.values
    if not region:
        return SliceStep(
            [(source, regions.everything(source.shape)), (index, ())], lambda *pieces: value.node.call(pieces)
        )
    dim = normal(value.node.arguments["dim"], len(region))
    return _picked(source, region, dim, (index, region), known, lambda piece, at: piece.gather(dim, at))


@rule("index_select")
def _index_select(value: TraceValue, region: Region, known: Known) -> SliceStep:
    source, index = value.node.values
    if not region:
        return SliceStep(
            [(v, regions.everything(v.shape)) for v in value.node.values], lambda *pieces: value.node.call(pieces)
        )
    dim = normal(value.node.arguments["dim"], len(region))
    of_index = (region[dim],) if index.shape else ()
    return _picked(source, region, dim, (index, of_index), known, lambda piece, at: piece.index_select(dim, at))


@rule("embedding")
def _embedding(value: TraceValue, region: Region, known: Known) -> SliceStep:
    table, index = value.node.values
    *places, columns = region
    return _picked(table, (range(1), columns), 0, (index, tuple(places)), known, lambda piece, at: piece[at])


def _picked(
    source: TraceValue, region: Region, dim: int, indices: tuple[TraceValue, Region], known: Known,
    pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> SliceStep:  # fmt: skip
    """What `pick` takes along one dimension of the source; the others are as in `region`."""
    if indices[0].node.is_floating:
        return SliceStep([(source, replaced(region, dim, range(source.shape[dim]))), indices], pick)
    unique, local = known(*indices).unique(return_inverse=True)
    needs = [(source, replaced(region, dim, regions.index_of(unique)))]
    return SliceStep(needs, lambda piece: pick(piece, local))


class _Indexing:
    """`x[i, :, j]`: which dimensions of x have index tensors, and where those appear in the result."""

    def __init__(self, indices: Sequence[Any], rank: int) -> None:
        self.tensors = [index for index in indices if index is not None]
        self.dims = [dim for dim, index in enumerate(indices) if index is not None]
        self.shape = tuple(torch.broadcast_shapes(*(tensor.shape for tensor in self.tensors)))
        is_joined = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        self.front = self.dims[0] if is_joined else 0  # position of the dimensions that they create
        self.others = [dim for dim in range(rank) if dim not in self.dims]

    @property
    def is_known(self) -> bool:
        return not any(tensor.node.is_floating for tensor in self.tensors) and not self.is_mask

    @property
    def is_mask(self) -> bool:
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in self.tensors)

    def parted(self, region: Region) -> tuple[Region, Region]:
        """The parts of a region of the result along dimensions created by index tensors, and along the others."""
        end = self.front + len(self.shape)
        return region[self.front : end], (*region[: self.front], *region[end:])

    def values(self, known: Known, places: Region, sizes: Sequence[int]) -> list[torch.Tensor]:
        """The values of index tensors at positions along the dimensions that they create, none negative."""
        lengths = regions.shape_of(places)
        values = [known(tensor, aligned(tensor, places)).expand(lengths) for tensor in self.tensors]
        return [at % sizes[dim] for at, dim in zip(values, self.dims, strict=True)]


@rule("index _unsafe_index")
def _index(value: TraceValue, region: Region, known: Known) -> SliceStep:
    source, arguments = value.node.values[0], value.node.arguments
    rank = len(source.shape)
    how = _Indexing(arguments["indices"], rank)
    if how.is_mask:
        return _whole(value, region)
    places, rest = how.parted(region)
    needed = list(regions.everything(source.shape))
    for dim, index in zip(how.others, rest, strict=True):
        needed[dim] = index
    if how.is_known:
        uniques = [at.unique(return_inverse=True) for at in how.values(known, places, source.shape)]
        for dim, (unique, _) in zip(how.dims, uniques, strict=True):
            needed[dim] = regions.index_of(unique)
        local = [inverse for _, inverse in uniques]
        return SliceStep([(source, tuple(needed))], lambda piece: piece[_filled(how.dims, local, rank)])
    lengths = regions.shape_of(places)
    needs = [(source, tuple(needed))] + [(tensor, aligned(tensor, places)) for tensor in how.tensors]
    return SliceStep(needs, lambda piece, *at: piece[_filled(how.dims, [a.expand(lengths) for a in at], rank)])


@rule("index_put _unsafe_index_put")
def _index_put(value: TraceValue, region: Region, known: Known) -> SliceStep:
    arguments, rank = value.node.arguments, len(region)
    target, given = arguments["self"], arguments["values"]
    how = _Indexing(arguments["indices"], rank)
    if not how.is_known:
        return _whole(value, region)
    positions = [at.flatten() for at in how.values(known, regions.everything(how.shape), target.shape)]
    hits = torch.ones(math.prod(how.shape), dtype=torch.bool)
    for dim, at in zip(how.dims, positions, strict=True):
        hits &= torch.isin(at, regions.positions(region[dim]))
    places = hits.nonzero().flatten()
    if not places.numel():
        return SliceStep([(target, region)], lambda piece: piece)
    local = [_local(region[dim], at[places]) for dim, at in zip(how.dims, positions, strict=True)]
    is_line = len(how.shape) == 1
    value_region = (regions.index_of(places),) if is_line else regions.everything(how.shape)
    rest = [region[dim] for dim in how.others]
    of_values = (*rest[: how.front], *value_region, *rest[how.front :])
    full = regions.shape_of(of_values)

    def compute(piece: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        new = new.expand(full).flatten(how.front, how.front + len(how.shape) - 1)
        new = new if is_line else new.index_select(how.front, places)
        by_dim = dict(zip(how.dims, local, strict=True))
        indices = [by_dim.get(dim) for dim in range(rank)]  # the tensor method does not accept None
        return torch.ops.aten.index_put(piece, indices, new, arguments["accumulate"])

    return SliceStep([(target, region), (given, aligned(given, of_values))], compute)


def _local(index: regions.Index, wanted: torch.Tensor) -> torch.Tensor:
    """Positions of the wanted values in `index`, which may be in any order."""
    order = regions.positions(index).argsort()
    return order[torch.searchsorted(regions.positions(index)[order], wanted)]


def _filled(dims: Sequence[int], indices: Sequence[torch.Tensor], rank: int) -> tuple[Any, ...]:
    by_dim = dict(zip(dims, indices, strict=True))
    return tuple(by_dim.get(dim, slice(None)) for dim in range(rank))


def _whole(value: TraceValue, region: Region) -> SliceStep:
    if (wider := widened(value, region, range(len(region)))) is not None:
        return wider
    needs = [(v, regions.everything(v.shape)) for v in value.node.values]
    return SliceStep(needs, lambda *pieces: value.node.call(pieces))


@rule("scatter scatter_add scatter_reduce index_add index_copy index_fill")
def _scatter(value: TraceValue, region: Region, known: Known) -> SliceStep:
    """All along one dimension; of the others what is asked for, where all arguments are as large along them."""
    dim = normal(value.node.arguments["dim"], len(region))
    tensors = value.node.values
    is_line = value.node.name.startswith("index")  # the same row of indices everywhere
    full = [v for v in tensors if len(v.shape) == len(region) and not (is_line and v is tensors[1])]
    same = [d for d in range(len(region)) if d != dim and all(v.shape[d] == value.shape[d] for v in full)]
    if (wider := widened(value, region, [d for d in range(len(region)) if d not in same])) is not None:
        return wider
    needs = [
        (v, tuple(region[d] if d in same else range(v.shape[d]) for d in range(len(region))))
        if any(v is other for other in full)
        else (v, regions.everything(v.shape))
        for v in tensors
    ]
    return SliceStep(needs, lambda *pieces: value.node.call(pieces))
