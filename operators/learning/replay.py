"""Walking over a tree of stored transitions: no GPU and no coder are needed.

    walk = Walk(tree, tree.roots("train")[0].id)
    while not walk.over:
        taken = walk.take(walk.open_offers[0])

An action that fails is rolled back: the walk stays, and the action is not open there from then on, since rewriting is
deterministic. `stop` is the last action everywhere. A transition that the tree does not hold is never open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evo_kernel.types import Status, Strategy, Tried
from operators.learning.tree import HORIZON, Edge, Tree
from operators.macro.catalogue import STOP
from operators.macro.features import MacroState


@dataclass(frozen=True)
class Taken:
    """One step: what was done where, and what came of it. `edge` is None for `stop`."""

    state: str
    strategy: Strategy
    edge: Edge | None

    @property
    def moved(self) -> bool:
        return self.edge is not None and self.edge.child is not None

    @property
    def log_gain(self) -> float:
        """Over the step before; 0 where it failed. Over a walk they add up to the log gain of its end."""
        return self.edge.log_gain if self.edge is not None and self.moved else 0.0


class UnseenTransition(ValueError):
    """An action was taken that is not open: the tree does not hold it, or it was tried there in this walk."""


class TreeWalk:
    """One episode over a tree from `root`: at most `horizon` steps, failed ones among them."""

    def __init__(self, tree: Tree, root: str, horizon: int = HORIZON) -> None:
        self._tree, self._horizon = tree, horizon
        self.root = self.state = root
        self.taken: list[Taken] = []
        self.stopped = False
        self._tried: dict[str, list[Tried]] = {}
        self._path: tuple[Strategy, ...] = tree.states[root].path
        self._best_log_us = tree.states[root].log_us

    @property
    def over(self) -> bool:
        return self.stopped or len(self.taken) >= self._horizon

    @property
    def open_offers(self) -> tuple[Strategy, ...]:
        """What may be taken here, in the coder's order; then `stop`."""
        tried = {one.strategy.key for one in self._tried.get(self.state, ())}
        return (*(one for one in self._tree.offered(self.state) if one.key not in tried), STOP)

    @property
    def macro_state(self) -> MacroState:
        """What a policy decides on: the state, the way here in this walk, what was tried here."""
        seen = self._tree.macro_state(self.state, self._path)
        return replace(seen, tried=tuple(self._tried.get(self.state, ())))

    @property
    def best_gain(self) -> float:
        """Log gain of the fastest kernel on the way: what a population keeps."""
        return self._tree.states[self.root].log_us - self._best_log_us

    def take(self, strategy: Strategy) -> Taken:
        """Raises UnseenTransition for what is not in `open_offers`, ValueError after the end."""
        if self.over:
            raise ValueError("the walk is over: begin another")
        if strategy not in self.open_offers:
            raise UnseenTransition(
                f"{strategy.key} is not open at {self.state}: the tree does not hold it, or it failed here. Take one "
                "of `open_offers`."
            )
        edge = None if strategy == STOP else self._tree.edges(self.state)[strategy.key]
        taken = Taken(self.state, strategy, edge)
        self.taken.append(taken)
        if edge is None:
            self.stopped = True
        else:
            self._follow(strategy, edge)
        return taken

    def _follow(self, strategy: Strategy, edge: Edge) -> None:
        log_gain = edge.log_gain if edge.status is Status.PASSED else None
        self._tried.setdefault(self.state, []).append(Tried(strategy, edge.status, log_gain))
        if edge.child is not None:
            self.state = edge.child
            self._path = (*self._path, strategy)
            self._best_log_us = min(self._best_log_us, self._tree.states[self.state].log_us)
