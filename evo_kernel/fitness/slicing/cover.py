"""Elements of a tensor, given by number, as few regions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from evo_kernel.fitness.slicing import regions
from evo_kernel.fitness.slicing.regions import Region

SPARE = 4
"""A region may have this many times the elements that are wanted of it: rather that than more regions than `FEW`."""
FEW = 8


def cover(elements: torch.Tensor, shape: Sequence[int], limit: int, generator: np.random.Generator) -> list[Region]:
    """Regions that have all the elements in them, in random order, or some of them at random: at most `limit` regions.

    `elements` are int64 numbers in a dense tensor of this shape.
    """
    unique = elements.unique()
    if not unique.numel():
        return []
    found = _parted(regions.coordinates(unique, shape), limit, generator)
    return [found[place] for place in generator.permutation(len(found))[:limit]]


def _parted(coordinates: list[torch.Tensor], limit: int, generator: np.random.Generator) -> list[Region]:
    """Elements by their coordinates, each once: cut along the dimension in which fewest places differ by the others."""
    along = [where.unique(return_inverse=True) for where in coordinates]
    amount = coordinates[0].numel() if coordinates else 1
    around = math.prod(unique.numel() for unique, _ in along)
    grouped = [] if around == amount else [_groups(coordinates, dim, *along[dim]) for dim in range(len(coordinates))]
    counts = [int(labels.max()) + 1 for labels in grouped]
    if not counts or (min(counts) > FEW and around <= SPARE * amount):
        return [tuple(regions.index_of(unique) for unique, _ in along)]
    dim = counts.index(min(counts))
    unique, inverse = along[dim]
    labels, found = grouped[dim], []
    for label in generator.permutation(counts[dim])[:limit].tolist():
        members = (labels == label).nonzero().flatten()
        of_first = inverse == members[0]
        rest = [where[of_first] for d, where in enumerate(coordinates) if d != dim]
        for part in _parted(rest, limit, generator):
            found.append((*part[:dim], regions.index_of(unique[members]), *part[dim:]))
    return found


def _groups(coordinates: Sequence[torch.Tensor], dim: int, unique: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """For each place along a dimension the number of its group: those whose elements have the same other coordinates.

    Told apart by sums of hashes of 64 bits.
    """
    mixed = torch.zeros_like(inverse)
    for other, where in enumerate(coordinates):
        if other != dim:
            mixed = (mixed ^ where) * 0x5851F42D4C957F2D + 0x14057B7EF767814F
            mixed = mixed ^ (mixed >> 29)
    mixed = mixed * -0x61C8864680B583EB
    mixed = mixed ^ (mixed >> 32)
    sums = torch.zeros(unique.numel(), dtype=torch.int64).index_add_(0, inverse, mixed)
    return sums.unique(return_inverse=True)[1]
