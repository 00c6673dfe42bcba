"""`SliceStep`, the result of a slicing rule: the argument regions that a region needs, and how to compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.regions import Index, Region
from evo_kernel.fitness.correctness.slicing.tracing import TraceValue


@dataclass(frozen=True)
class SliceStep:
    """`compute` makes the region from the pieces that it needs, without modifying them."""

    needs: Sequence[tuple[TraceValue, Region]]
    compute: Callable[..., torch.Tensor]
    flops: float = 0.0  # of contractions; 0 if the cost is proportional to the elements


Known = Callable[[TraceValue, Region], torch.Tensor]
"""Returns a region of a value that depends on integer inputs only."""
Rule = Callable[[TraceValue, Region, Known], SliceStep]
RULES: dict[str, Rule] = {}
"""By the operation's name."""


def rule(names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return register


def widened(value: TraceValue, region: Region, dims: Sequence[int]) -> SliceStep | None:
    """The region as part of one that is whole along these dimensions; None if it already is.

    Other parts of the same value then share its computation.
    """
    if all(regions.is_whole(region[dim], value.shape[dim]) for dim in dims):
        return None
    wide = tuple(range(value.shape[d]) if d in dims else index for d, index in enumerate(region))
    inside = tuple(index if d in dims else range(len(index)) for d, index in enumerate(region))
    return SliceStep([(value, wide)], lambda piece: regions.take(piece, inside))


def aligned(value: TraceValue, region: Sequence[Index]) -> Region:
    """The region of an argument that is broadcast to a result of which `region` is wanted."""
    own = region[len(region) - len(value.shape) :]
    return tuple(range(1) if size == 1 else index for size, index in zip(value.shape, own, strict=True))


def replaced(region: Sequence[Index], dim: int, index: Index) -> Region:
    return (*region[:dim], index, *region[dim + 1 :])


def put(target: torch.Tensor, places: Region, piece: torch.Tensor) -> None:
    """Write a piece to these positions."""
    if all(isinstance(index, range) for index in places):
        regions.take(target, places).copy_(piece)
        return
    rank = len(places)
    at = [regions.positions(index).view([-1 if k == d else 1 for k in range(rank)]) for d, index in enumerate(places)]
    target[tuple(at)] = piece


def normal(dim: int, rank: int) -> int:
    return dim % max(1, rank)


def listed(dims: Any, rank: int) -> list[int]:
    """Dimensions as an operation takes them: a number, several, or None for all."""
    if dims is None or (isinstance(dims, Sequence) and not dims):
        return list(range(rank))
    return [normal(int(dim), rank) for dim in (dims if isinstance(dims, Sequence) else [dims])]
