"""Chooses the programs that a partial execution runs: corners of the grid, rare programs, random ones.

The survey without floating-point data (partial.py) counts what each program loads, stores and multiplies, its
iterations, and the blocks that it executes. A kernel could skip work in few programs, which random sampling would miss:
so one program of every group with different counts is taken, rarest group first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from evo_kernel.fitness.ir.counting import Counter

LEAST, MOST, MOST_SMALL = 8, 128, 8192
"""Minimal number of sampled programs, whatever their time; maximal number, and of those that store little."""
ENOUGH_BYTES, ENOUGH = 1 << 18, 1 / 32
"""What sampled programs store together, in bytes and as a share of the launch: with less, more than MOST are sampled,
because most elements of an output may be zero."""
LINES = 8
"""Lines along the first axis of a grid that contain half of the random programs: those often share inputs."""
STRUCTURE = 0.5
"""Share of the time for programs that differ from others."""
GROUPS = 4096
"""Maximal number of groups considered."""


def draw(
    grid: tuple[int, int, int], surveyed: Counter, seconds: torch.Tensor, limit_s: float, generator: torch.Generator
) -> torch.Tensor:
    """Linear ids, ascending. `seconds`: time of each program; the sampled ones take at most `limit_s`."""
    chosen: set[int] = set()
    spent = stored = 0.0
    stores = surveyed.by_program.get("store_bytes", torch.zeros_like(seconds))
    enough = min(ENOUGH_BYTES, ENOUGH * float(stores.sum()))

    def take(program: int, limit: float) -> bool:
        """Add a program if the time allows; returns whether it did."""
        nonlocal spent, stored
        if program not in chosen:
            most = (MOST if stored >= enough else MOST_SMALL) * limit / limit_s
            late = spent + float(seconds[program]) > limit or len(chosen) >= most
            if late and len(chosen) >= LEAST:
                return False
            chosen.add(program)
            spent, stored = spent + float(seconds[program]), stored + float(stores[program])
        return True

    for program in corners(grid):
        take(program, limit_s)
    groups = groups_of(surveyed, math.prod(grid))
    for labels, label in groups:
        if not bool((labels[torch.tensor(sorted(chosen))] == label).any()):
            members = (labels == label).nonzero().squeeze(1)
            if not take(int(members[torch.randint(members.numel(), (), generator=generator)]), STRUCTURE * limit_s):
                break
    for program in _random(grid, generator):
        if len(chosen) == math.prod(grid) or not take(program, limit_s):
            break
    return torch.tensor(sorted(chosen))


def corners(grid: tuple[int, int, int]) -> list[int]:
    """Programs at the start, end or middle of every axis; the last program of the grid first."""
    x, y, z = (sorted({size - 1, size // 2, 0}, reverse=True) for size in grid)
    ids = [i + grid[0] * (j + grid[1] * k) for k in z for j in y for i in x]
    return sorted(ids, key=lambda program: (program != ids[0], program != 0))[: LEAST // 2]


def groups_of(surveyed: Counter, total: int) -> list[tuple[torch.Tensor, int]]:
    """(labels of all programs, a label): groups of programs with equal counts or equal executions of a block; rarest
    first."""
    counts = (amounts for name, amounts in surveyed.by_program.items() if not name.startswith("loop."))  # as blocks
    counted = (*counts, *surveyed.reached.values())
    features = [torch.unique(counts, return_inverse=True)[1] for counts in counted]
    groups: list[tuple[int, torch.Tensor, int]] = []
    for labels in features:
        counts = torch.bincount(labels)
        rare = [label for label in torch.argsort(counts)[:GROUPS].tolist() if 0 < int(counts[label]) < total]
        groups += [(int(counts[label]), labels, label) for label in rare]
    return [(labels, label) for _, labels, label in sorted(groups, key=lambda group: group[0])[:GROUPS]]


def _random(grid: tuple[int, int, int], generator: torch.Generator) -> Iterator[int]:
    """Random programs, alternately anywhere and on a few lines along the first axis; some repeat."""
    total, rows = math.prod(grid), grid[1] * grid[2]
    lines = torch.randint(rows, (LINES,), generator=generator).tolist()
    for number in range(8 * total):
        if number % 2 and rows > 1:
            yield lines[number // 2 % LINES] * grid[0] + int(torch.randint(grid[0], (), generator=generator))
        else:
            yield int(torch.randint(total, (), generator=generator))


def positions(shape: Sequence[int], most: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Random positions along each axis, ascending: they cross in at most `most` elements, about equally many on each
    axis that is long enough."""
    chosen: dict[int, torch.Tensor] = {}
    for done, axis in enumerate(sorted(range(len(shape)), key=lambda axis: shape[axis])):
        count = min(shape[axis], max(1, int(most ** (1 / (len(shape) - done)))))
        chosen[axis] = torch.randperm(shape[axis], generator=generator)[:count].sort().values
        most //= max(1, count)
    return [chosen[axis] for axis in range(len(shape))]


def crossings(chosen: Sequence[torch.Tensor], strides: Sequence[int]) -> torch.Tensor:
    """The sums of positions times strides, row-major: numbers of elements, or their offsets."""
    total = torch.zeros(1, dtype=torch.int64)
    for where, stride in zip(chosen, strides, strict=True):
        total = (total.unsqueeze(-1) + where * stride).reshape(-1)
    return total
