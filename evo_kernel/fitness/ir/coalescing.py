"""Converts accesses to runs of consecutive bytes, and to the sectors that their warps request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.launch_traffic import SECTOR_BYTES
from evo_kernel.fitness.ir.layouts import requests_of, scattered
from evo_kernel.fitness.ir.memory import PADDING, DeviceMemory, MemoryAccess

_WARP_BITS = 5  # of its 32 lanes
_LANE_BITS = 32  # more than of any access


class Runs(NamedTuple):
    """Runs of consecutive bytes accessed by an access's active lanes: one element of each tensor per run.

    All tensors have one shape and may be expanded views.
    """

    starts: torch.Tensor  # address of the first byte
    lengths: torch.Tensor  # bytes
    owners: torch.Tensor  # programs
    lanes: torch.Tensor  # number of the first lane within its program, row-major


def runs_of(
    memory: DeviceMemory, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int, shape: tuple[int, ...],
    layout: str = "",
) -> Runs:  # fmt: skip
    """Runs along the axis with contiguous lanes; without one, each lane is a run.

    `layout`: of the lanes, if they have one, which then tells which of them a warp asks for at once.
    """
    full = (programs.numel(), *shape)
    access = _reached(memory, pointer, mask, item, full)
    axis, length = _contiguous(access, item)
    active = None
    if axis is not None and access is not None and not access.indices and mask is None:
        base = memory.address(memory.buffers.index(access.buffer)) - PADDING + access.offset
        starts, lengths, lanes = _regular(access.progressions, full, axis, length, item)
        return Runs(starts + base, lengths, programs.reshape(-1, *(1,) * len(shape)).expand(starts.shape), lanes)
    if axis is None or access is None:
        starts = pointer.data.expand(full)
        counts = torch.ones((1,) * len(full), dtype=torch.int64).expand(full)
        active = None if mask is None else mask.data.expand(full)
    else:
        base = memory.address(memory.buffers.index(access.buffer)) - PADDING
        others = tuple(p for p in access.progressions if p[0] != axis)
        rows = type(access)(access.buffer, access.offset, others, access.indices, access.rank)
        reduced = tuple(1 if a == axis else size for a, size in enumerate(full))
        starts = (rows.offsets() + base).expand(reduced)
        counts = torch.full((1,) * len(full), length).expand(reduced)
        if mask is not None:
            on = mask.data
            if on.shape[axis] > 1 and _has_holes(on, axis):
                return _stretches(on.expand(full).movedim(axis, -1), starts.movedim(axis, -1)[..., 0], programs, item)
            if on.shape[axis] > 1:
                counts = on.sum(axis, keepdim=True).expand(reduced)
                starts = starts + on.int().argmax(axis, keepdim=True) * item
            else:
                counts = torch.where(on, length, 0).expand(reduced)
            active = counts > 0
    owners = programs.reshape(-1, *(1,) * len(shape)).expand(starts.shape)
    if layout and axis is None:
        numbers = requests_of(layout, shape, item) << _WARP_BITS
    else:
        numbers = (torch.arange(math.prod(starts.shape[1:])) * length).reshape(starts.shape[1:])
    lanes = numbers.expand(starts.shape)
    columns = (starts, (counts * item).expand(starts.shape), owners, lanes)
    if active is not None:
        return Runs(*(column[active.expand(starts.shape)] for column in columns))
    return Runs(*columns)


@lru_cache(maxsize=64)
def _regular(
    progressions: tuple[tuple[int, int, int], ...], full: tuple[int, ...], axis: int, length: int, item: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Starts from the first byte, lengths and lanes of an access without a mask, which a loop repeats elsewhere."""
    reduced = tuple(1 if a == axis else size for a, size in enumerate(full))
    starts = torch.zeros((1,) * len(full), dtype=torch.int64)
    for place, size, step in progressions:
        if place != axis:
            starts = starts + (torch.arange(size) * step).reshape([-1 if a == place else 1 for a in range(len(full))])
    lanes = (torch.arange(math.prod(reduced[1:])) * length).reshape(reduced[1:]).expand(reduced)
    return starts.expand(reduced), torch.full((1,) * len(full), length * item).expand(reduced), lanes


def scattering(
    memory: DeviceMemory, pointer: Lanes, mask: Lanes | None, item: int, shape: tuple[int, ...], layout: str
) -> float:  # fmt: skip
    """How many times as many sectors a layout asks for as one that keeps together what lies side by side in memory."""
    axis, _ = _contiguous(_reached(memory, pointer, mask, item, (1, *shape)), item)
    return 1.0 if axis is None else scattered(layout, shape, item, axis - 1)


def _reached(
    memory: DeviceMemory, pointer: Lanes, mask: Lanes | None, item: int, full: tuple[int, ...]
) -> MemoryAccess | None:
    return memory.access(pointer.sum, item, len(full), PADDING // 2 if mask is not None else 0)


def _contiguous(access: MemoryAccess | None, item: int) -> tuple[int | None, int]:
    """The axis along which lanes lie side by side in memory, and how many."""
    if access is None:
        return None, 1
    jumps = {axis for term in access.indices for axis in term.support}
    found = [(p, size) for p, size, step in access.progressions if step == item and p > 0 and p not in jumps]
    return found[-1] if found else (None, 1)


def together(accesses: Sequence[Runs]) -> tuple[torch.Tensor, Runs]:
    """Flat runs of several accesses one behind the other, and of which access each is.

    Lanes of each access have numbers of their own, so that warps of different accesses share nothing.
    """
    sizes = torch.tensor([runs.starts.numel() for runs in accesses])
    which = torch.arange(len(accesses)).repeat_interleave(sizes)
    starts, lengths, owners, lanes = (torch.cat(column) for column in zip(*accesses, strict=True))
    return which, Runs(starts, lengths, owners, lanes + (which << _LANE_BITS))


def _has_holes(on: torch.Tensor, axis: int) -> bool:
    """Whether there are inactive lanes between active ones."""
    return bool((on.movedim(axis, -1).int().diff(dim=-1) > 0).sum(-1).gt(~on.movedim(axis, -1)[..., 0]).any())


def _stretches(on: torch.Tensor, starts: torch.Tensor, programs: torch.Tensor, item: int) -> Runs:
    """Runs of active lanes; the lanes of a row are the last axis. `starts`: by row."""
    begins, ends = on.clone(), on.clone()
    begins[..., 1:] &= ~on[..., :-1]
    ends[..., :-1] &= ~on[..., 1:]
    *rows, first = begins.nonzero(as_tuple=True)
    last = ends.nonzero(as_tuple=True)[-1]  # in the same order, row by row
    lanes = torch.arange(math.prod(on.shape[1:])).reshape(on.shape[1:])[(*rows[1:], first)]
    return Runs(starts[tuple(rows)] + first * item, (last - first + 1) * item, programs[rows[0]], lanes)


def distinct_bytes(runs: Runs) -> tuple[torch.Tensor, torch.Tensor]:
    """(programs, bytes) that one access reaches, in parts; bytes that several lanes of a program ask for count once."""
    starts, lengths, owners = (column.reshape(-1).numpy() for column in runs[:3])
    grows = owners[1:] - owners[:-1]
    if not ((grows < 0) | ((grows == 0) & (starts[1:] < (starts + lengths)[:-1]))).any():  # in order, as mostly
        return torch.from_numpy(owners), torch.from_numpy(lengths)
    order = np.lexsort((starts, owners))
    starts, ends, owners = starts[order], (starts + lengths)[order], owners[order]
    numbers = np.cumsum(np.diff(owners, prepend=owners[:1]) != 0)
    base = numbers * (int(ends.max()) - int(starts.min()))  # so that programs follow each other
    reached = np.maximum.accumulate(ends + base)
    starts[1:] = np.maximum(starts[1:], reached[:-1] - base[1:])
    return torch.from_numpy(owners), torch.from_numpy((ends - starts).clip(min=0))


def sectors_of(runs: Runs, size: int = SECTOR_BYTES) -> tuple[torch.Tensor, torch.Tensor]:
    """(programs, sectors) that accesses request, in parts. `size`: of a sector, or of a line in place of it.

    Runs shorter than a sector share sectors within their warp, in any order of its 32 lanes.
    """
    runs, bits = Runs(*(column.reshape(-1) for column in runs)), size.bit_length() - 1
    first, last = runs.starts >> bits, (runs.starts + runs.lengths - 1) >> bits
    short = runs.lengths < size
    if not bool(short.any()):
        return runs.owners, last - first + 1
    whole = ~short
    owners, warps, sectors = (
        torch.cat([column[short], column[short & (first < last)]])
        for column in (runs.owners, runs.lanes >> _WARP_BITS, first)
    )
    sectors[int(short.sum()) :] += 1
    order = torch.from_numpy(np.lexsort((sectors, warps, owners)))
    owners, warps, sectors = owners[order], warps[order], sectors[order]
    new = torch.ones_like(owners, dtype=torch.bool)
    new[1:] = (owners.diff() != 0) | (warps.diff() != 0) | (sectors.diff() != 0)
    counts = torch.cat([(last - first + 1)[whole], torch.ones(int(new.sum()), dtype=torch.int64)])
    return torch.cat([runs.owners[whole], owners[new]]), counts
