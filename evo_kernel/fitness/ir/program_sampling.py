"""Which programs of a launch a look executes: corners of the grid, programs that differ from the others, random ones.

A survey without floating-point data (partial.py) tells what each program loads, stores and multiplies, how often it
goes round its loops and which blocks of the IR it reaches. What few programs do is where a kernel could save work that
a random draw would miss: of every such group one program is drawn, the rarest group first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from evo_kernel.fitness.ir.counting import Counter

LEAST, MOST = 8, 128
"""Programs that are drawn whatever they take, and however little."""
LINES = 8
"""Lines along the first axis of a grid that half of the random programs lie on: those often share what they read."""
STRUCTURE = 0.5
"""Of the time, what programs that differ from others may take."""
GROUPS = 4096
"""Groups of programs that are looked through."""


def draw(
    grid: tuple[int, int, int], surveyed: Counter, seconds: torch.Tensor, limit_s: float, generator: torch.Generator
) -> torch.Tensor:
    """Linear ids, rising. `seconds`: what each program takes; all that are drawn take up to `limit_s`."""
    chosen: set[int] = set()
    spent = 0.0

    def take(program: int, limit: float) -> bool:
        """Whether there was time for it."""
        nonlocal spent
        if program not in chosen:
            late = spent + float(seconds[program]) > limit or len(chosen) >= MOST * limit / limit_s
            if late and len(chosen) >= LEAST:
                return False
            chosen.add(program)
            spent += float(seconds[program])
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
    """Programs that are first, last or in the middle of every axis, the last one of the grid first."""
    x, y, z = (sorted({size - 1, size // 2, 0}, reverse=True) for size in grid)
    ids = [i + grid[0] * (j + grid[1] * k) for k in z for j in y for i in x]
    return sorted(ids, key=lambda program: (program != ids[0], program != 0))[: LEAST // 2]


def groups_of(surveyed: Counter, total: int) -> list[tuple[torch.Tensor, int]]:
    """(labels of all programs, a label): programs of one of several counts, or that reach a block as often.

    The rarest come first.
    """
    counts = (amounts for name, amounts in surveyed.by_program.items() if not name.startswith("loop."))  # as blocks
    counted = (*counts, *surveyed.reached.values())
    features = [torch.unique(counts, return_inverse=True)[1] for counts in counted]
    found: list[tuple[int, torch.Tensor, int]] = []
    for labels in features:
        counts = torch.bincount(labels)
        rare = [label for label in torch.argsort(counts)[:GROUPS].tolist() if 0 < int(counts[label]) < total]
        found += [(int(counts[label]), labels, label) for label in rare]
    return [(labels, label) for _, labels, label in sorted(found, key=lambda group: group[0])[:GROUPS]]


def _random(grid: tuple[int, int, int], generator: torch.Generator) -> Iterator[int]:
    """Random programs, by turns anywhere and on a few lines along the first axis; some come twice."""
    total, rows = math.prod(grid), grid[1] * grid[2]
    lines = torch.randint(rows, (LINES,), generator=generator).tolist()
    for number in range(8 * total):
        if number % 2 and rows > 1:
            yield lines[number // 2 % LINES] * grid[0] + int(torch.randint(grid[0], (), generator=generator))
        else:
            yield int(torch.randint(total, (), generator=generator))
