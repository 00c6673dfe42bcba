"""Committed versions in a list: what a reader of the lineage wants to see first."""

from __future__ import annotations

import heapq
import math

from evo_kernel.types.notes import Version, VersionOrder
from populations.candidate_cache import Library
from populations.state import STATUS_OF_CODE, Leaderboard, Lineage
from populations.store import Store


def versions(
    store: Store,
    lineage: Lineage,
    board: Leaderboard,
    library: Library,
    limit: int,
    order: VersionOrder,
    of: int | None,
) -> list[Version]:
    """At most `limit`; of a longer path the latest ones. The population's lock is held."""
    if order == "path":
        numbers: list[int] = []
        at = of or board.best()
        while at and len(numbers) < limit:
            numbers.append(at)
            at = lineage.parent[at]
        numbers.reverse()
    elif order == "best":
        timed = (candidate for candidate, time in enumerate(board.times) if not math.isnan(time))
        numbers = heapq.nsmallest(limit, timed, key=lambda candidate: board.times[candidate])
    else:
        last = len(lineage)
        numbers = list(range(last, max(last - limit, 0), -1))
    return [_row(store, lineage, board, library, number) for number in numbers]


def _row(store: Store, lineage: Lineage, board: Leaderboard, library: Library, number: int) -> Version:
    found = store.row("SELECT operator FROM candidates WHERE id = ?", (number,))
    assert found is not None, "the number was taken from the lineage"
    strategy = library.strategy(lineage.strategy[number]).name if lineage.strategy[number] else ""
    known = number < len(board.times)
    code = board.status[number] if known else 0
    parent = lineage.parent[number] or None
    gain = board.times[parent] - board.times[number] if parent and known else math.nan
    score = board.scores[number] if known else math.nan
    return Version(
        number,
        parent,
        found[0],
        strategy,
        str(STATUS_OF_CODE[code]) if code else "",
        None if math.isnan(score) else score,
        None if math.isnan(gain) else gain,
    )
