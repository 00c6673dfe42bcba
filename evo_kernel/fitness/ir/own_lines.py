"""Lines that a program loads only after it has stored all of them: while they are in L2, memory is not asked."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evo_kernel.fitness.ir.coalescing import Runs
from evo_kernel.fitness.ir.launch_traffic import LINE_BYTES, SECTOR_BYTES
from evo_kernel.fitness.ir.memory import BASE_BITS

MOST = 1 << 21
"""Sectors or lines of all accesses together; of more, none counts."""
_SECTOR_BITS = SECTOR_BYTES.bit_length() - 1
_SECTORS = LINE_BYTES // SECTOR_BYTES
_PROGRAM = 56
"""Bits below the number of a program, for sectors of all buffers."""

NONE = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
Loads = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Runs of lines in the order of accesses, program by program: program, first and last line, number of the access."""


def long_runs(runs: Runs, programs: torch.Tensor) -> Runs:
    """The runs of some programs that may store whole sectors, flat. `programs`: ascending."""
    starts, lengths, owners, lanes = (column.reshape(-1) for column in runs)
    places = torch.searchsorted(programs, owners).clamp(max=programs.numel() - 1)
    chosen = (programs[places] == owners) & (lengths >= SECTOR_BYTES)
    return Runs(starts[chosen], lengths[chosen], owners[chosen], lanes[chosen])


def own_lines(
    stores: Sequence[tuple[int, Runs]], loads: Loads, programs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(program, line) of what `programs` (ascending) load for the first time after they stored it whole.

    `stores`: (number of the access, its `long_runs`), in order; atomic operations are none. Too few rather than too
    many: lines that two programs store together, or that are stored in pieces of less than a sector, are not counted.
    """
    sectors = _stored_sectors(stores, programs)
    owners, first, last, accesses = loads
    if sectors is None or not owners.numel() or int((last - first + 1).sum()) > MOST:
        return NONE
    whole, stored_at = _whole_lines(*sectors)
    keys, which = _expanded((torch.searchsorted(programs, owners) << (_PROGRAM - 2)) + first, last - first + 1)
    loaded, loaded_at = _earliest(keys, accesses[which])
    if not whole.numel():
        return NONE
    places = torch.searchsorted(whole, loaded).clamp(max=whole.numel() - 1)
    own = loaded[(whole[places] == loaded) & (stored_at[places] < loaded_at)]
    return programs[own >> (_PROGRAM - 2)], own & ((1 << (_PROGRAM - 2)) - 1)


def _stored_sectors(
    stores: Sequence[tuple[int, Runs]], programs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(program and sector, the access that stored it first), ascending; None where there are none, or too many."""
    keys, at, total = [], [], 0
    for access, runs in stores:
        owners = torch.searchsorted(programs, runs.owners)
        starts = runs.starts - (1 << BASE_BITS)  # as `Footprints.in_order` has it: the first buffer begins at 0
        first = (starts + SECTOR_BYTES - 1) >> _SECTOR_BITS
        count = (((starts + runs.lengths) >> _SECTOR_BITS) - first).clamp(min=0)
        total += int(count.sum())
        if total > MOST:
            return None
        expanded, _ = _expanded((owners << _PROGRAM) + first, count)
        keys.append(expanded)
        at.append(torch.full_like(expanded, access))
    return _earliest(torch.cat(keys), torch.cat(at)) if total else None


def _whole_lines(sectors: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(program and line, the access that completed it) of the lines that have all sectors, ascending."""
    lines, groups, counts = torch.unique_consecutive(sectors >> 2, return_inverse=True, return_counts=True)
    completed = torch.zeros_like(lines).scatter_reduce(0, groups, at, "amax")
    whole = counts == _SECTORS
    return lines[whole], completed[whole]


def _expanded(first: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All numbers of ranges, and which range each is of."""
    which = torch.arange(first.numel()).repeat_interleave(count)
    inside = torch.arange(which.numel()) - (count.cumsum(0) - count)[which]
    return first[which] + inside, which


def _earliest(keys: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct keys, ascending, and the first access of each; `at` ascends for each key."""
    ordered, order = torch.sort(keys, stable=True)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    return ordered[begins], at[order][begins]
