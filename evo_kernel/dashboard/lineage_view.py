"""The lineage, collapsed to what improved: lines that led to a new best, and what hangs on one candidate.

A hundred thousand candidates are no picture. What is drawn are the candidates that were the best so far when they were
judged, with their ancestors, and of one candidate that is asked for its ancestors and its fastest children. Everything
else is a number at the node that it hangs on.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from populations.reading import PopulationReader

MOST = 1200  # nodes
CHILDREN = 40
LABELLED = 40  # nodes at most that have room for strategy and gain
STEP, LABELLED_STEP = 26.0, 100.0  # pixels from node to node, at least
HEIGHT, EDGE = 420.0, 50.0
WIDTH = 1300.0
"""Pixels: a picture that needs no more is as wide as the window."""


@dataclass(frozen=True)
class LineageNode:
    candidate: int
    x: float  # per cent of the picture's width
    y: float  # pixels
    action: str
    status: str
    score: float | None
    gain: float | None  # parent ÷ this
    children: int
    hidden: int  # children that are not drawn
    kind: str  # classes: "rise", "best", "at"


@dataclass(frozen=True)
class LineageEdge:
    start: tuple[float, float]  # x, y as of nodes: the parent
    end: tuple[float, float]
    on_path: bool  # of the best


@dataclass(frozen=True)
class LineageTree:
    nodes: tuple[LineageNode, ...]
    edges: tuple[LineageEdge, ...]
    ticks: tuple[tuple[float, str], ...]  # (y, µs)
    width: float | None  # pixels; None: as wide as the window
    height: float
    labelled: bool  # nodes have strategy and gain beside them
    left_out: int  # candidates of improving lines that are not drawn: the oldest


def tree(reader: PopulationReader, rose: Set[int], best: int | None, at: int | None) -> LineageTree:
    """`rose`: candidates that were the best so far."""
    parents, times = reader.family.parent, reader.board().times
    chosen = _chosen(parents, times, [*rose, *filter(None, (best, at))], at)
    numbers = sorted(chosen)[-MOST:]
    drawn, rows = set(numbers), {row["candidate"]: row for row in reader.nodes(numbers)}
    children, drawn_children = Counter(parents), Counter(parents[number] for number in numbers)
    path = set(line(parents, best))
    levels = [times[number] for number in numbers if math.isfinite(times[number])]
    low, high = min(levels, default=0.0), max(levels, default=1.0)
    spread = max(high - low, 0.02)
    labelled = len(numbers) <= LABELLED
    width = (LABELLED_STEP if labelled else STEP) * len(numbers)
    places = {
        number: (100 * (rank + 0.7) / (len(numbers) + 0.4), _height(times[number], low, spread))
        for rank, number in enumerate(numbers)
    }
    nodes = tuple(
        LineageNode(
            number, *places[number], rows[number]["strategy"] or rows[number]["operator"], rows[number]["status"] or "",
            rows[number]["score"], _gain(times[parents[number]] if parents[number] else math.inf, times[number]),
            children[number], children[number] - drawn_children[number],
            " ".join(
                name
                for name, given in (("rise", number in rose), ("best", number == best), ("at", number == at))
                if given
            ),
        )
        for number in numbers
    )  # fmt: skip
    edges = tuple(
        LineageEdge(places[parents[number]], places[number], number in path)
        for number in numbers
        if parents[number] in drawn
    )
    return LineageTree(
        nodes, edges, tuple(_ticks(low, spread)), width if width > WIDTH else None, HEIGHT + 2 * EDGE, labelled,
        len(chosen) - len(numbers),
    )  # fmt: skip


def _chosen(parents: Sequence[int], times: Sequence[float], ends: Iterable[int], at: int | None) -> set[int]:
    """These ends with their ancestors; of one candidate its fastest children too."""
    chosen: set[int] = set()
    for end in ends:
        above = list(itertools.takewhile(lambda number: number not in chosen, line(parents, end)))
        chosen.update(above)
    if at:
        hanging = (number for number, parent in enumerate(parents) if parent == at)
        chosen.update(heapq.nsmallest(CHILDREN, hanging, key=lambda number: _order(times[number])))
    return chosen


def line(parents: Sequence[int], number: int | None) -> Iterable[int]:
    """A candidate and its main ancestors, the nearest first."""
    while number:
        yield number
        number = parents[number]


def _order(log_us: float) -> float:
    return log_us if math.isfinite(log_us) else math.inf


def _height(log_us: float, low: float, spread: float) -> float:
    """Faster is higher; what has no time lies at the bottom."""
    return EDGE + HEIGHT * (min((log_us - low) / spread, 1.0) if math.isfinite(log_us) else 1.06)


def _gain(parent: float, log_us: float) -> float | None:
    """Parent ÷ child, of log times."""
    return math.exp(parent - log_us) if math.isfinite(parent) and math.isfinite(log_us) else None


def _ticks(low: float, spread: float) -> Iterable[tuple[float, str]]:
    for part in range(5):
        level = low + spread * part / 4
        us = math.exp(level)
        yield _height(level, low, spread), f"{us:.3g} µs" if us < 1000 else f"{us:,.0f} µs"
