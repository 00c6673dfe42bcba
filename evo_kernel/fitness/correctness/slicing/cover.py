"""Covers elements of a tensor, given by number, by few regions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from evo_kernel.fitness.correctness.slicing import regions
from evo_kernel.fitness.correctness.slicing.regions import Region

SPARE = 4
"""A region may have this many times the requested elements, to avoid more than `FEW` regions."""
FEW = 8


def cover(elements: torch.Tensor, shape: Sequence[int], limit: int, generator: np.random.Generator) -> list[Region]:
    """At most `limit` regions in random order that contain all of the elements, or a random part of them.

    `elements` are distinct int64 numbers in a dense tensor of this shape.
    """
    if not elements.numel():
        return []
    coordinates = list(np.unravel_index(elements.numpy(), shape)) if shape else []
    found_regions = _parted(coordinates, limit, generator)
    return [found_regions[place] for place in generator.permutation(len(found_regions))[:limit]]


def _parted(coordinates: list[np.ndarray], limit: int, generator: np.random.Generator) -> list[Region]:
    """Split elements, given by distinct coordinates, along the dimension whose positions differ least in the others."""
    along = [np.unique(where, return_inverse=True) for where in coordinates]
    amount = len(coordinates[0]) if coordinates else 1
    around = math.prod(len(unique) for unique, _ in along)
    grouped = [] if around == amount else [_groups(coordinates, dim, *along[dim]) for dim in range(len(coordinates))]
    counts = [int(labels.max()) + 1 for labels in grouped]
    if not counts or (min(counts) > FEW and around <= SPARE * amount):
        return [tuple(_index(unique) for unique, _ in along)]
    dim = counts.index(min(counts))
    unique, inverse = along[dim]
    labels, parts = grouped[dim], []
    for label in generator.permutation(counts[dim])[:limit].tolist():
        members = np.flatnonzero(labels == label)
        of_first = inverse == members[0]
        rest = [where[of_first] for d, where in enumerate(coordinates) if d != dim]
        for part in _parted(rest, limit, generator):
            parts.append((*part[:dim], _index(unique[members]), *part[dim:]))
    return parts


def _index(positions: np.ndarray) -> regions.Index:
    return regions.index_of(torch.from_numpy(positions.astype(np.int64)))


def _groups(coordinates: Sequence[np.ndarray], dim: int, unique: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """For each position along a dimension the number of its group: positions whose elements have the same other
    coordinates.

    Groups are compared by sums of 64-bit hashes.
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
