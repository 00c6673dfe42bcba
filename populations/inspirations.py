"""Who an operator is shown beside the parent: one better relative, one from another cell, one recent failure."""

from __future__ import annotations

import numpy as np

from populations.state import Leaderboard, Lineage


def inspirations(
    lineage: Lineage, board: Leaderboard, parent: int, island: int, rng: np.random.Generator
) -> tuple[int, ...]:
    """At most three candidates other than the parent, each for its reason; fewer where there is none.

    Better: a faster contender of the parent's own cell. Other: the elite of another cell of the island. Failure: the
    parent's youngest child that failed here, else the latest failure anywhere; its evaluation says why.
    """
    archive = board.islands.archives[island]
    parent_time = board.times[parent] if parent < len(board.times) else float("inf")
    own = board.cell[parent] if parent < len(board.cell) else -1
    own_cell = board.cell_names[own] if own >= 0 else ""
    chosen: list[int] = []
    cell = archive.cells.get(own_cell)
    better = [c.candidate for c in cell.contenders if c.mean < parent_time] if cell else []
    others = [kept.elite.candidate for name, kept in archive.cells.items() if name != own_cell]
    for pool in (better, others):
        if pool:
            chosen.append(pool[int(rng.integers(len(pool)))])
    failure = _recent_failure(lineage, board, parent)
    if failure:
        chosen.append(failure)
    return tuple(dict.fromkeys(candidate for candidate in chosen if candidate != parent))


def _recent_failure(lineage: Lineage, board: Leaderboard, parent: int) -> int:
    for looked, child in enumerate(lineage.children(parent)):
        if looked >= 8:  # a parent may have thousands of children, and only what is recent helps
            break
        if child < len(board.status) and board.status[child] and board.times[child] != board.times[child]:
            return child
    return board.recent_failures[-1] if board.recent_failures else 0
