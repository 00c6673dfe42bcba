"""Parents of a tree of transitions whose every offer was judged, and the regret of policies that need no model there.

The value of an action is its log gain over the parent, and 0 where it failed or is slower: the search then keeps the
parent. Regret is the best action's value minus the chosen one's, averaged over what a policy would choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from evo_kernel.types import Credit, Decision, ScoredCandidate, Source, Status, Strategy, TaskCard
from operators.learning.tree import Tree, TreeState
from operators.macro.bandit import BanditPolicy
from operators.macro.features import MacroState

EACH = 8  # parents of a task, at most
ORDERS = 20  # in which the bandit meets the parents; its regret is the mean
T = TypeVar("T")


@dataclass(frozen=True)
class Action:
    """One offer with what came of it. `log_gain`: parent over child; None where it failed."""

    strategy: Strategy
    witnessed: bool
    log_gain: float | None

    @property
    def value(self) -> float:
        return max(0.0, self.log_gain or 0.0)


@dataclass(frozen=True)
class Situation:
    """A parent as a policy meets it, with every offer's outcome."""

    id: str
    task: TaskCard
    parent: ScoredCandidate
    actions: tuple[Action, ...]

    @property
    def source(self) -> Source:
        return self.parent.source

    @property
    def offered(self) -> tuple[Strategy, ...]:
        return tuple(one.strategy for one in self.actions)

    @property
    def values(self) -> np.ndarray:
        return np.array([one.value for one in self.actions])

    @property
    def best(self) -> float:
        return float(self.values.max())

    @property
    def log_us(self) -> float:
        assert self.parent.evaluation is not None
        return self.parent.evaluation.log_us

    def state(self, **more: object) -> MacroState:
        return MacroState(self.task, self.parent, self.source, **more)  # type: ignore[arg-type]


def situations(tree: Tree, each: int = EACH, seed: int = 0) -> list[Situation]:
    """Up to `each` states of every whole task (none that is narrowed to one case) with two known offers or more.

    Tasks in turn, so that any first part has all of them.
    """
    rng = np.random.default_rng(seed)
    known: dict[str, list[TreeState]] = {}
    for state in sorted(tree.states.values(), key=lambda one: one.id):
        if "@" not in state.task and len(state.offers) > 1 and len(tree.offered(state.id)) == len(state.offers):
            known.setdefault(state.task, []).append(state)
    drawn = {task: [known[task][int(at)] for at in rng.permutation(len(known[task]))[:each]] for task in sorted(known)}
    return in_turn((task, _situation(tree, state)) for task, states in drawn.items() for state in states)


def _situation(tree: Tree, state: TreeState) -> Situation:
    seen, edges = tree.macro_state(state.id), tree.edges(state.id)
    known = ((offer, edges[offer.key]) for offer in state.offers)
    actions = tuple(
        Action(offer, edge.witnessed, edge.log_gain if edge.status is Status.PASSED else None) for offer, edge in known
    )
    return Situation(f"{state.task}.{state.id}", seen.task, seen.parent, actions)


def in_turn(grouped: Iterable[tuple[object, T]]) -> list[T]:
    """Values by turns of their groups: the first of each, then the second of each."""
    met: dict[object, int] = {}
    ranked: list[tuple[int, T]] = []
    for group, value in grouped:
        met[group] = met.get(group, -1) + 1
        ranked.append((met[group], value))
    return [value for _, value in sorted(ranked, key=lambda entry: entry[0])]


# -- policies that need no model -------------------------------------------------------------------------------------


def uniform(situation: Situation) -> float:
    """Expected regret of an even choice."""
    return situation.best - float(situation.values.mean())


def bandit(found: Sequence[Situation], orders: int = ORDERS, seed: int = 0) -> list[float]:
    """Regret by situation of a bandit that starts with nothing and learns from each of its own choices.

    It meets the situations in random orders, once each: as many measurements as a model gets answers. Mean over orders.
    """
    total = np.zeros(len(found))
    for number in range(orders):
        rng = np.random.default_rng([seed, number])
        policy = BanditPolicy()
        for at in rng.permutation(len(found)):
            one = found[int(at)]
            decision = policy.choose(one.state(), one.offered, rng)
            total[at] += one.best - float(np.dot(decision.probabilities, one.values))
            policy.learn(credit(one, decision))
    return list(total / orders)


def credit(situation: Situation, decision: Decision) -> Credit:
    """What a population would have told of that choice."""
    action = situation.actions[decision.chosen]
    gain = action.log_gain or 0.0
    name = action.strategy.name if action.witnessed else "other"
    return Credit(0, 0, "bench", name, action.witnessed, gain, gain, 0, decision)


NO_MODEL: Mapping[str, Callable[[Sequence[Situation]], list[float]]] = {
    "uniform": lambda found: [uniform(one) for one in found],
    "bandit": bandit,
}
"""Regret by situation of every policy that needs no language model."""
