"""What actions of a tree are worth, and decisions drawn from its states.

Q(s, a) = log gain + discount · V(child), V(s) = max(0, max Q): staying is always possible. The discount makes earlier
gains worth more; without it a useless step costs nothing as long as enough steps are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from evo_kernel.types import Strategy, Tried
from operators.learning.network import OfferScorer
from operators.learning.policy_features import EARNED, ActionOutcome, Earnings, Observation, sight_of
from operators.learning.tree import HORIZON, Edge, Tree, TreeState
from operators.macro.catalogue import STOP

VALIDATE_EVERY = 4  # of this many training tasks one is kept back, to tell which checkpoint generalises
BATCH = 64  # of decisions scored at once without gradients


@dataclass
class Values:
    """Discounted values of a tree, by state and steps left.

    `failure`, `stop`: what a failed step and stopping cost, in log gain. Stopping is not free: the fastest kernel on
    the way is kept anyway, so that going on can only win.
    """

    tree: Tree
    discount: float = 0.9
    failure: float = 0.05
    stop: float = 0.05
    _known: dict[tuple[str, int], float] = field(default_factory=dict, repr=False)

    def state(self, name: str, steps: int) -> float:
        if steps <= 0:
            return 0.0
        key = (name, steps)
        if key not in self._known:
            found = [self.action(edge, steps) for edge in self.tree.edges(name).values()]
            self._known[key] = max(0.0, max(found, default=0.0))
        return self._known[key]

    def action(self, edge: Edge, steps: int) -> float:
        if edge.child is None or edge.child == edge.parent:
            return -self.failure
        return edge.log_gain + self.discount * self.state(edge.child, steps - 1)

    def offers(self, state: TreeState, sight: Observation) -> list[float]:
        """Q of every offer of a decision at a state."""
        edges, steps = self.tree.edges(state.id), max(HORIZON - len(state.path), 1)
        return [-self.stop if one == STOP else self.action(edges[one.key], steps) for one in sight.offered]


def learnable(tree: Tree) -> list[TreeState]:
    """States with known actions, by id. Raises ValueError where there is none."""
    found = [state for state in tree.states.values() if tree.edges(state.id)]
    if not found:
        raise ValueError("no state of the tree has a known action: collect a larger one")
    return sorted(found, key=lambda state: state.id)


def parted(tree: Tree) -> tuple[Tree, Tree]:
    """Training tasks, and those kept back to validate; the held-out ones are in neither. The same in every run."""
    tree = tree.only(lambda problem: problem.split == "train")
    tasks = sorted({problem.task for problem in tree.problems.values()})
    kept_back = tasks[VALIDATE_EVERY - 1 :: VALIDATE_EVERY]
    return tree.only(lambda one: one.task not in kept_back), tree.only(lambda one: one.task in kept_back)


def decision(
    tree: Tree, state: TreeState, tried: Sequence[int] = (), earned: tuple[ActionOutcome, ...] = ()
) -> Observation:
    """At a stored state: its known actions and STOP offered, those at the positions `tried` taken already."""
    known, edges = tree.offered(state.id), tree.edges(state.id)
    outcomes = [(known[at], edges[known[at].key]) for at in tried]
    past = tuple(Tried(one, edge.status, edge.log_gain if edge.child else None) for one, edge in outcomes)
    left = tuple(one for at, one in enumerate(known) if at not in tried)
    return sight_of(replace(tree.macro_state(state.id), tried=past), (*left, STOP), earned)


@dataclass
class Decisions:
    """Decisions as a run meets them, drawn from a tree.

    In every second one up to half of a state's known actions is tried already, so that a policy learns to go on from
    what failed; in every second one something was earned on the problem before, so that it learns to adapt.
    """

    tree: Tree
    rng: np.random.Generator
    _edges: dict[str, list[tuple[Strategy, float]]] = field(default_factory=dict, repr=False)

    def at(self, state: TreeState) -> Observation:
        count = len(self.tree.edges(state.id))
        many = int(self.rng.integers(0, count // 2 + 1)) if self.rng.random() < 0.5 else 0
        tried = [int(at) for at in self.rng.permutation(count)[:many]]
        return decision(self.tree, state, tried, self.earned(state.task))

    def earned(self, problem: str) -> tuple[ActionOutcome, ...]:
        """What up to EARNED random transitions of a problem earned; in every second draw nothing."""
        if not self._edges:
            for state in self.tree.states.values():
                edges = self.tree.edges(state.id)
                known = [(one, edges[one.key].log_gain) for one in self.tree.offered(state.id)]
                self._edges.setdefault(state.task, []).extend(known)
        earnings, edges = Earnings(), self._edges[problem]
        count = int(self.rng.integers(1, EARNED + 1)) if self.rng.random() < 0.5 else 0
        for at in self.rng.integers(0, len(edges), count) if edges else ():
            earnings.add(*edges[int(at)])
        return earnings.outcomes


def shortfall(model: OfferScorer, tree: Tree) -> float:
    """Mean over states of max Q - Σ p · Q: what a draw of the model falls short of the best action, in log gain."""
    states, values = learnable(tree), Values(tree)
    lost: list[float] = []
    for start in range(0, len(states), BATCH):
        part = states[start : start + BATCH]
        sights = [decision(tree, state) for state in part]
        with torch.inference_mode():
            scores, _ = model(sights)
        for state, sight, row in zip(part, sights, scores.cpu(), strict=True):
            worth = torch.tensor(values.offers(state, sight))
            lost.append(float(worth.max() - (row[: len(worth)].softmax(0) * worth).sum()))
    return float(np.mean(lost))
