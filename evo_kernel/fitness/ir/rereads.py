"""Counts the lines that a program reads again, by their reuse distance: the distinct lines that it reads in between.

A cache that evicts what was used longest ago holds a line until as many others were read as it has room for (Mattson
and others, Evaluation Techniques for Storage Hierarchies, IBM Systems Journal, 1970). Of many lines, those of random
blocks are observed (Waldspurger and others, Efficient MRC Construction with SHARDS, FAST 2015).
"""

from __future__ import annotations

import math

import torch

BINS = 32
"""Of distances; each reaches from 1/sqrt(2) of its largest one. The largest of the first is all lines of a program."""
MOST_PROGRAMS = 8
_MOST_LINES, _MOST_OBSERVED = 1 << 21, 1 << 15
"""Of all programs together, with those that are read again."""
_BLOCK_BITS = 3
_FRACTION = 1 << 20


def rereads(owners: torch.Tensor, first: torch.Tensor, last: torch.Tensor, seed: int) -> tuple[float, ...]:
    """For each bin of distances: lines that are read again ÷ distinct lines; empty if none are.

    `owners`, `first`, `last`: runs of lines of some programs, each program's together and in their order. `seed`:
    determines what is observed.
    """
    times = last - first + 1
    _, programs, runs = torch.unique_consecutive(owners, return_inverse=True, return_counts=True)
    whole = times.cumsum(0)[runs.cumsum(0) - 1] <= _MOST_LINES  # by program
    fits = whole[programs] if bool(whole.any()) else times.cumsum(0) <= _MOST_LINES
    owners, first, times = owners[fits], first[fits], times[fits]
    total = int(times.sum())
    if not total:
        return ()
    lines = first.repeat_interleave(times) + torch.arange(total) - (times.cumsum(0) - times).repeat_interleave(times)
    owners = owners.repeat_interleave(times)
    if total > _MOST_OBSERVED:
        (odd,) = torch.randint(1 << 61, (1,), generator=torch.Generator().manual_seed(seed)).tolist()
        hashed = ((lines >> _BLOCK_BITS) * (2 * odd + 1) >> 40) & (_FRACTION - 1)
        observed = hashed < _FRACTION * _MOST_OBSERVED // total
        owners, lines = owners[observed], lines[observed]
    if not lines.numel():
        return ()
    before = _before(owners, lines)
    again = (before >= 0).nonzero().squeeze(1)
    if not again.numel():
        return ()
    between = _earlier_not_greater(before)[again] - before[again] - 1
    _, place, distinct = torch.unique_consecutive(
        owners[before < 0], return_inverse=True, return_counts=True
    )  # by program
    number = torch.zeros_like(owners)
    number[before < 0] = place
    share = (between + 1).double() / distinct[torch.cummax(number, 0).values[again]]
    bins = (-2 * share.clamp(max=1.0).log2()).floor().long().clamp(max=BINS - 1)
    return tuple((torch.bincount(bins, minlength=BINS).double() / (before < 0).sum()).tolist())


def _before(owners: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
    """Where each line was read before by the same program; -1 where it was not."""
    _, owners = torch.unique_consecutive(owners, return_inverse=True)
    keys = owners * (lines.max() + 1) + lines
    keys, order = torch.sort(keys, stable=True)
    same = keys[1:] == keys[:-1]
    before = torch.full_like(keys, -1)
    before[order[1:][same]] = order[:-1][same]
    return before


def _earlier_not_greater(keys: torch.Tensor) -> torch.Tensor:
    """How many elements before each are not greater, by merging halves."""
    size = 1 << max(1, math.ceil(math.log2(keys.numel())))
    padded = torch.full((size,), size, dtype=torch.int64)
    padded[: keys.numel()] = keys
    counts, width = torch.zeros_like(padded), 1
    while width < size:
        halves = padded.view(-1, 2, width)
        left = halves[:, 0].sort(-1).values
        counts.view(-1, 2, width)[:, 1] += torch.searchsorted(left, halves[:, 1].contiguous(), right=True)
        width *= 2
    return counts[: keys.numel()]
