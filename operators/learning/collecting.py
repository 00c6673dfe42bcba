"""Collecting transitions: which action of which state is judged next.

First all actions of the root; then, drawn anew for every state to expand, three ways in fixed shares: *breadth* (the
shallowest state with untried offers, the fastest of those first: level after level is completed), *greedy* (the fastest
state, wherever it is: where a good policy would walk) and *uniform* (a random state of a random depth: where a poor one
would). A state gets several of its actions judged at a time: one known action teaches nothing about choosing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from evo_kernel.types import Strategy
from operators.learning.tree import HORIZON

SHARES: Mapping[str, float] = {"breadth": 0.5, "greedy": 0.25, "uniform": 0.25}
AT_ONCE: Mapping[str, int] = {"breadth": 64, "greedy": 6, "uniform": 4}
"""Actions of a state that are judged when it is expanded."""


@dataclass
class _Node:
    log_us: float
    depth: int
    left: list[Strategy] = field(default_factory=list)  # not handed out yet


class Frontier:
    """The states of one problem and what is left to try on them. Not thread-safe."""

    def __init__(self, rng: np.random.Generator, horizon: int = HORIZON, shares: Mapping[str, float] = SHARES) -> None:
        self._rng, self._horizon, self._ways = rng, horizon, tuple(shares)
        self._chances = np.array(list(shares.values())) / sum(shares.values())
        self._nodes: dict[str, _Node] = {}
        self._queue: deque[tuple[str, Strategy]] = deque()

    def add(self, state: str, log_us: float, depth: int, left: tuple[Strategy, ...]) -> None:
        """A state with its untried offers; one that is known already only gets nearer to the root, if it does."""
        if state in self._nodes:
            self._nodes[state].depth = min(self._nodes[state].depth, depth)
            return
        self._nodes[state] = _Node(log_us, depth, list(left))

    def depth(self, state: str) -> int:
        return self._nodes[state].depth

    def next(self) -> tuple[str, Strategy] | None:
        """What to judge next; None when nothing is left on the states that are known by now."""
        if not self._queue:
            self._expand()
        return self._queue.popleft() if self._queue else None

    def _expand(self) -> None:
        open_states = [name for name, node in self._nodes.items() if node.left and node.depth < self._horizon]
        if not open_states:
            return
        root = next((name for name in open_states if self._nodes[name].depth == 0), None)
        way = "breadth" if root else str(self._rng.choice(self._ways, p=self._chances))
        chosen = root or self._chosen(way, open_states)
        left = self._nodes[chosen].left
        for _ in range(min(AT_ONCE[way], len(left))):
            self._queue.append((chosen, left.pop(int(self._rng.integers(len(left))))))

    def _chosen(self, way: str, open_states: list[str]) -> str:
        nodes = self._nodes
        if way == "breadth":
            return min(open_states, key=lambda name: (nodes[name].depth, nodes[name].log_us, name))
        if way == "greedy":
            return min(open_states, key=lambda name: (nodes[name].log_us, name))
        depths = sorted({nodes[name].depth for name in open_states})
        depth = depths[int(self._rng.integers(len(depths)))]
        there = sorted(name for name in open_states if nodes[name].depth == depth)
        return there[int(self._rng.integers(len(there)))]
