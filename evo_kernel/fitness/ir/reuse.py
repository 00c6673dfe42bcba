"""Counts the lines that programs read again, by reuse distance: the distinct lines that a program reads in between; and
the rounds in which they read others.

A cache that evicts what was used longest ago holds a line until as many others were read as it has room for (Mattson
and others, Evaluation Techniques for Storage Hierarchies, IBM Systems Journal, 1970). Of many lines, those of random
blocks are observed (Waldspurger and others, Efficient MRC Construction with SHARDS, FAST 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

BINS = 32
"""Of distances; each reaches from 1/sqrt(2) of its largest one. The largest of the first is all lines of a program."""
MOST_PROGRAMS = 8
_MOST_OBSERVED, _MOST_LINES = 1 << 16, 1 << 21
"""Of all programs together, with those that are read again; and of a single program, of which a part is observed."""
_BLOCK_BITS = 3
_ROUND_BITS = 40
_FRACTION = 1 << 20


@dataclass(frozen=True)
class Reuse:
    """Of the lines of some programs."""

    again: tuple[float, ...] = ()  # lines that are read again ÷ distinct lines, by bins of distances; empty if none are
    new_rounds: float = 1.0  # share of rounds in which a program reads a line for the first time


def reuse_of(
    owners: torch.Tensor, first: torch.Tensor, last: torch.Tensor, rounds: torch.Tensor, seed: int, distances: bool
) -> Reuse:
    """`owners`, `first`, `last`, `rounds`: runs of lines with their programs and rounds, program by program in order.

    `seed`: determines what is observed. Without `distances`, only rounds are counted.
    """
    times = last - first + 1
    _, programs, runs = torch.unique_consecutive(owners, return_inverse=True, return_counts=True)
    ends = times.cumsum(0)
    whole = ends[runs.cumsum(0) - 1] <= _MOST_OBSERVED  # by program
    fits = whole[programs] if bool(whole.any()) else (programs == 0) & (ends <= _MOST_LINES)
    first, times, which = first[fits], times[fits], fits.nonzero().squeeze(1)
    total = int(times.sum())
    lines = first.repeat_interleave(times) + torch.arange(total) - (times.cumsum(0) - times).repeat_interleave(times)
    which = which.repeat_interleave(times)
    if total > _MOST_OBSERVED:
        (odd,) = torch.randint(1 << 61, (1,), generator=torch.Generator().manual_seed(seed)).tolist()
        hashed = ((lines >> _BLOCK_BITS) * (2 * odd + 1) >> 40) & (_FRACTION - 1)
        observed = hashed < _FRACTION * _MOST_OBSERVED // total
        which, lines = which[observed], lines[observed]
    if not lines.numel():
        return Reuse()
    programs = programs[which]
    before = _before(programs, lines)
    new, again = (before < 0), (before >= 0).nonzero().squeeze(1)
    places = (programs << _ROUND_BITS) + rounds[which]
    new_rounds = torch.unique(places[new]).numel() / torch.unique(places).numel()
    if not distances or not again.numel():
        return Reuse((), new_rounds)
    between = _earlier_not_greater(before)[again] - before[again] - 1
    share = (between + 1).double() / torch.bincount(programs[new])[programs[again]]
    bins = (-2 * share.clamp(max=1.0).log2()).floor().long().clamp(max=BINS - 1)
    return Reuse(tuple((torch.bincount(bins, minlength=BINS).double() / new.sum()).tolist()), new_rounds)


def _before(programs: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
    """Where each line was read before by the same program; -1 where it was not."""
    keys, order = torch.sort(programs * (lines.max() + 1) + lines, stable=True)
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
