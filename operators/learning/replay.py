"""Walking over a tree of stored transitions: no GPU and no coder are needed.

    walk = Walk(tree, tree.roots("train")[0].id)
    while not walk.over:
        taken = walk.step(index into walk.offers)      # only where walk.mask is true

An action that fails is rolled back: the walk stays, and the action is masked there from then on, since rewriting is
deterministic. `stop` is the last action everywhere. A transition that the tree does not hold is masked; with a `Live`
judge it is offered too, carried out there, and remembered by the walk's `Overlay`. `environment` makes a Gymnasium
environment of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from evo_kernel.types import Status, Strategy, Tried
from operators.learning.reward import Reward, RewardSettings, reward_of
from operators.learning.tree import HORIZON, Edge, State, Tree
from operators.macro.catalogue import STOP
from operators.macro.features import MacroState


class Live(Protocol):
    """A judge, with a coder, for transitions that nobody has seen."""

    def transition(self, state: State, strategy: Strategy) -> tuple[Edge, State | None]:
        """What comes of a strategy on a state, and the child if it passes. Raises what a judge raises."""
        ...


@dataclass
class Overlay:
    """Transitions found live, on top of a tree. Share one between walks so that nothing is judged twice."""

    live: Live | None = None
    edges: dict[tuple[str, str], Edge] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)


@dataclass(frozen=True)
class Taken:
    """One step: what was done where, and what came of it. `edge` is None for `stop`."""

    state: str
    strategy: Strategy
    edge: Edge | None
    reward: Reward

    @property
    def moved(self) -> bool:
        return self.edge is not None and self.edge.child is not None


class UnseenTransition(ValueError):
    """An action was taken that is masked: the tree does not hold it, or it was tried there in this walk."""


class Walk:
    """One episode over a tree from `root`: at most `horizon` steps, failed ones among them."""

    def __init__(
        self,
        tree: Tree,
        root: str,
        reward: RewardSettings | None = None,
        horizon: int = HORIZON,
        overlay: Overlay | None = None,
    ) -> None:
        self._tree, self._reward, self._horizon = tree, reward or RewardSettings(), horizon
        self._overlay = overlay or Overlay()
        self.root = self.state = root
        self.taken: list[Taken] = []
        self.stopped = False
        self._tried: dict[str, list[Tried]] = {}
        self._path: tuple[Strategy, ...] = self._at(root).path
        self.best_log_us = self._at(root).log_us

    @property
    def over(self) -> bool:
        return self.stopped or len(self.taken) >= self._horizon

    @property
    def offers(self) -> tuple[Strategy, ...]:
        """Everything that the coder offers here, then `stop`."""
        return (*self._at(self.state).offers, STOP)

    @property
    def mask(self) -> np.ndarray:
        """Which of `offers` may be taken; `stop` always."""
        tried = {one.strategy.key for one in self._tried.get(self.state, ())}
        return np.array([self._known(one.key) and one.key not in tried for one in self.offers[:-1]] + [True])

    @property
    def open_offers(self) -> tuple[Strategy, ...]:
        """`offers` without what is masked."""
        return tuple(one for one, may in zip(self.offers, self.mask, strict=True) if may)

    @property
    def macro_state(self) -> MacroState:
        """What a policy decides on: the state, the way here in this walk, what was tried here."""
        seen = self._tree.seen(self._at(self.state), self._path)
        return replace(seen, tried=tuple(self._tried.get(self.state, ())))

    @property
    def gain(self) -> float:
        """Log gain of where the walk is over its root."""
        return self._at(self.root).log_us - self._at(self.state).log_us

    @property
    def best_gain(self) -> float:
        """Log gain of the fastest kernel on the way: what a population keeps."""
        return self._at(self.root).log_us - self.best_log_us

    @property
    def return_(self) -> float:
        """The rewards so far, undiscounted."""
        return sum(one.reward.total for one in self.taken)

    def step(self, action: int) -> Taken:
        """Take `offers[action]`. Raises UnseenTransition where it is masked, ValueError after the end."""
        if self.over:
            raise ValueError("the walk is over: begin another")
        if not 0 <= action < len(self.offers) or not self.mask[action]:
            what = self.offers[action].key if 0 <= action < len(self.offers) else f"number {action}"
            raise UnseenTransition(
                f"{what} is masked at {self.state}: the tree does not hold it, or it failed here. Take one that "
                "`mask` allows, or pass an Overlay with a live judge."
            )
        strategy = self.offers[action]
        if strategy == STOP:
            self.stopped = True
            self.taken.append(Taken(self.state, STOP, None, Reward(stop=self._reward.stop)))
            return self.taken[-1]
        return self._follow(strategy)

    def take(self, strategy: Strategy) -> Taken:
        """The same by strategy."""
        return self.step(self.offers.index(strategy))

    def _follow(self, strategy: Strategy) -> Taken:
        edge = self._edge(strategy)
        earned = reward_of(self._reward, edge.status, edge.log_gain, edge.witnessed, len(self.taken))
        taken = Taken(self.state, strategy, edge, earned)
        self.taken.append(taken)
        self._tried.setdefault(self.state, []).append(
            Tried(strategy, edge.status, edge.log_gain if edge.status is Status.PASSED else None)
        )
        if edge.child is not None:
            self.state = edge.child
            self._path = (*self._path, strategy)
            self.best_log_us = min(self.best_log_us, self._at(self.state).log_us)
        return taken

    def _at(self, name: str) -> State:
        return self._tree.states.get(name) or self._overlay.states[name]

    def _known(self, key: str) -> bool:
        if self._overlay.live is not None:
            return True
        return key in self._tree.edges(self.state) or (self.state, key) in self._overlay.edges

    def _edge(self, strategy: Strategy) -> Edge:
        known = self._tree.edges(self.state).get(strategy.key) or self._overlay.edges.get((self.state, strategy.key))
        if known is not None:
            return known
        live = self._overlay.live
        assert live is not None, "what is neither known nor live is masked"
        edge, child = live.transition(self._at(self.state), strategy)
        if child is not None:
            self._overlay.states.setdefault(child.id, child)
        self._overlay.edges[(self.state, strategy.key)] = edge
        return edge


def rollout(walk: Walk, choose: Callable[[MacroState, tuple[Strategy, ...]], Strategy]) -> Walk:
    """Walk to the end by a function from what is seen and may be taken to what is taken."""
    while not walk.over:
        walk.take(choose(walk.macro_state, walk.open_offers))
    return walk
