"""Walks over a tree of stored transitions.

An action that fails leaves the walk where it is and is not open there again, since rewriting is deterministic. A
transition that the tree does not hold is never open.
"""

from __future__ import annotations

from dataclasses import replace

from evo_kernel.types import Status, Strategy, Tried
from operators.learning.tree import HORIZON, Edge, Tree
from operators.macro.features import MacroState


class TreeWalk:
    """One episode over a tree from `root`: at most `horizon` steps, failed ones among them."""

    def __init__(self, tree: Tree, root: str, horizon: int = HORIZON) -> None:
        self._tree, self._horizon = tree, horizon
        self.root = self.state = root
        self.steps = 0
        self._tried: dict[str, list[Tried]] = {}
        self._path: tuple[Strategy, ...] = tree.states[root].path
        self._best_log_us = tree.states[root].log_us

    @property
    def offers(self) -> tuple[Strategy, ...]:
        """What may be taken here, in the coder's order; nothing at the horizon."""
        if self.steps >= self._horizon:
            return ()
        tried = {one.strategy.key for one in self._tried.get(self.state, ())}
        return tuple(one for one in self._tree.offered(self.state) if one.key not in tried)

    @property
    def macro_state(self) -> MacroState:
        """What a policy decides on: the state, the way here in this walk, what was tried here."""
        seen = self._tree.macro_state(self.state, self._path)
        return replace(seen, tried=tuple(self._tried.get(self.state, ())))

    @property
    def best_gain(self) -> float:
        """Log gain of the fastest kernel on the way: what a population keeps."""
        return self._tree.states[self.root].log_us - self._best_log_us

    def take(self, strategy: Strategy) -> Edge:
        """What came of it. Raises ValueError for what is not in `offers`."""
        if strategy not in self.offers:
            raise ValueError(f"{strategy.key} is not open at {self.state}: take one of `offers`")
        edge = self._tree.edges(self.state)[strategy.key]
        self.steps += 1
        log_gain = edge.log_gain if edge.status is Status.PASSED else None
        self._tried.setdefault(self.state, []).append(Tried(strategy, edge.status, log_gain))
        if edge.child is not None:
            self.state = edge.child
            self._path = (*self._path, strategy)
            self._best_log_us = min(self._best_log_us, self._tree.states[self.state].log_us)
        return edge
