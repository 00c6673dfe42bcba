"""Regions: products of one index set per dimension; operations on them; covers of elements by few of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

Index = range | torch.Tensor
"""Positions along one dimension, in the requested order: an ascending range, or a 1-d int64 tensor."""
Region = tuple[Index, ...]


def index_of(positions: torch.Tensor | Sequence[int]) -> Index:
    """Positions as a range if they are evenly spaced and ascending, so that no copy is needed."""
    tensor = torch.as_tensor(positions, dtype=torch.int64)
    count = tensor.numel()
    if count == 0:
        return range(0)
    first = int(tensor[0])
    if count == 1:
        return range(first, first + 1)
    step = int(tensor[1]) - first
    if step > 0 and torch.equal(tensor, torch.arange(first, first + step * count, step)):
        return range(first, first + step * count, step)
    return tensor


def positions(index: Index) -> torch.Tensor:
    return torch.arange(index.start, index.stop, index.step) if isinstance(index, range) else index


def everything(shape: Sequence[int]) -> Region:
    return tuple(range(size) for size in shape)


def is_whole(index: Index, size: int) -> bool:
    return isinstance(index, range) and index == range(size)


def shape_of(region: Region) -> tuple[int, ...]:
    return tuple(map(len, region))


def count(region: Region) -> int:
    return math.prod(map(len, region))


def key_of(region: Region) -> tuple[object, ...]:
    """A hashable key, equal for equal regions."""
    return tuple(
        (i.start, i.step, len(i)) if isinstance(i, range) else (i.numel(), i.numpy().tobytes()) for i in region
    )


def chosen(index: Index, sub: Index) -> Index:
    """The positions of `index` at `sub`."""
    if isinstance(index, range) and isinstance(sub, range):
        return index[sub.start : sub.stop : sub.step]
    return index_of(positions(index)[positions(sub)])


def covering(wanted: Index) -> tuple[Index, Index]:
    """The distinct positions in ascending order; and the positions of the wanted ones in them."""
    if isinstance(wanted, range):
        return wanted, range(len(wanted))
    unique, places = wanted.unique(return_inverse=True)
    return index_of(unique), index_of(places)


def places_in(index: Index, wanted: Index) -> Index:
    """Where the wanted positions are in an ascending `index`, which must contain them."""
    if isinstance(index, range) and isinstance(wanted, range) and len(wanted) and wanted.step % index.step == 0:
        first, step = (wanted.start - index.start) // index.step, wanted.step // index.step
        return range(first, first + step * len(wanted), step)
    return index_of(torch.searchsorted(positions(index), positions(wanted)))


def take(tensor: torch.Tensor, region: Region) -> torch.Tensor:
    """The region of a tensor: a view if possible."""
    small = tensor.element_size() == 1 and tensor.is_floating_point()  # torch cannot gather 8-bit floats
    result = tensor.view(torch.uint8) if small else tensor
    for dim, index in enumerate(region):
        if is_whole(index, result.shape[dim]):
            continue
        if isinstance(index, range):
            slices = (slice(None),) * dim + (slice(index.start, index.start + index.step * len(index), index.step),)
            result = result[slices]
        else:
            result = result.index_select(dim, index)
    return result.view(tensor.dtype) if small else result


def united(regions: Sequence[Region]) -> Region:
    """The smallest region that contains all of these."""
    first, *rest = regions
    if not rest:
        return tuple(covering(index)[0] for index in first)
    return tuple(_united(indices) for indices in zip(*regions, strict=True))


def _united(indices: Sequence[Index]) -> Index:
    if len({key_of((index,)) for index in indices}) == 1:
        return covering(indices[0])[0]
    if all(isinstance(index, range) and index.step == 1 for index in indices):
        spans = sorted((i.start, i.stop) for i in indices if isinstance(i, range) and len(i))
        if all(spans[k + 1][0] <= max(stop for _, stop in spans[: k + 1]) for k in range(len(spans) - 1)):
            return range(spans[0][0], max(stop for _, stop in spans)) if spans else range(0)
    return index_of(torch.cat([positions(index) for index in indices]).unique())


def flat_of(region: Region, shape: Sequence[int]) -> torch.Tensor:
    """Numbers of the region's elements in a dense tensor of this shape, in the region's order."""
    numbers = torch.zeros((), dtype=torch.int64)
    for index, size in zip(region, shape, strict=True):
        numbers = numbers.unsqueeze(-1) * size + positions(index)
    return numbers.flatten()


def dimension_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[range, range]]:
    """Corresponding groups of dimensions of two shapes with the same number of elements (a view).

    Both shapes are cut into as many groups as possible, in order, so that the products of each group agree.
    """
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        start_i, start_j, left, right = i, j, 1, 1
        if i < len(before):
            left, i = before[i], i + 1
        if j < len(after):
            right, j = after[j], j + 1
        while left != right:
            if left < right:
                left, i = left * before[i], i + 1
            else:
                right, j = right * after[j], j + 1
        groups.append((range(start_i, i), range(start_j, j)))
    return groups


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


def _index(positions: np.ndarray) -> Index:
    return index_of(torch.from_numpy(positions.astype(np.int64)))


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
