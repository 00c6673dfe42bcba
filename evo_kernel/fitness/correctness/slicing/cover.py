"""Elements of a tensor, given by number, as few regions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.regions import Region

SPARE = 4
"""A region may have this many times the elements that are wanted of it: rather that than more regions than `FEW`."""
FEW = 8


def cover(elements: torch.Tensor, shape: Sequence[int], limit: int, generator: np.random.Generator) -> list[Region]:
    """Regions that have all the elements in them, in random order, or some of them at random: at most `limit` regions.

    `elements` are int64 numbers in a dense tensor of this shape, each once.
    """
    if not elements.numel():
        return []
    coordinates = list(np.unravel_index(elements.numpy(), shape)) if shape else []
    found = _parted(coordinates, limit, generator)
    return [found[place] for place in generator.permutation(len(found))[:limit]]


def _parted(coordinates: list[np.ndarray], limit: int, generator: np.random.Generator) -> list[Region]:
    """Elements by their coordinates, each once: cut along the dimension in which fewest places differ by the others."""
    along = [np.unique(where, return_inverse=True) for where in coordinates]
    amount = len(coordinates[0]) if coordinates else 1
    around = math.prod(len(unique) for unique, _ in along)
    grouped = [] if around == amount else [_groups(coordinates, dim, *along[dim]) for dim in range(len(coordinates))]
    counts = [int(labels.max()) + 1 for labels in grouped]
    if not counts or (min(counts) > FEW and around <= SPARE * amount):
        return [tuple(_index(unique) for unique, _ in along)]
    dim = counts.index(min(counts))
    unique, inverse = along[dim]
    labels, found = grouped[dim], []
    for label in generator.permutation(counts[dim])[:limit].tolist():
        members = np.flatnonzero(labels == label)
        of_first = inverse == members[0]
        rest = [where[of_first] for d, where in enumerate(coordinates) if d != dim]
        for part in _parted(rest, limit, generator):
            found.append((*part[:dim], _index(unique[members]), *part[dim:]))
    return found


def _index(positions: np.ndarray) -> regions.Index:
    return regions.index_of(torch.from_numpy(positions.astype(np.int64)))


def _groups(coordinates: Sequence[np.ndarray], dim: int, unique: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """For each place along a dimension the number of its group: those whose elements have the same other coordinates.

    Told apart by sums of hashes of 64 bits.
    """
    mixed = np.zeros(len(inverse), dtype=np.uint64)
    for other, where in enumerate(coordinates):
        if other != dim:
            mixed = _hash(mixed ^ where.astype(np.uint64))
    sums = np.zeros(len(unique), dtype=np.uint64)
    np.add.at(sums, inverse, mixed)
    return np.unique(sums, return_inverse=True)[1]


def _hash(numbers: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
