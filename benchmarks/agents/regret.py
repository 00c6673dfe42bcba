"""Macro regret: what a choice among the offered actions leaves on the table, by the stored ground truth.

The value of an action is the log of its gain over the parent (pairs, geometric mean over cases), and 0 where it failed
or is slower: the search then keeps the parent. Regret is the best action's value minus the chosen one's, averaged over
what a policy would choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.agents import truth
from benchmarks.agents.problems import Problems, strategy_of
from evo_kernel.fitness.knobs import apply_knobs
from evo_kernel.tasks.loading import load
from evo_kernel.types import Credit, Decision, Relative, Source, Strategy, TaskCard
from operators.macro.bandit import BanditPolicy
from operators.macro.features import MacroState, context

ORDERS = 20  # in which the bandit meets the parents; its regret is the mean
RESAMPLES = 10_000


@dataclass(frozen=True)
class Action:
    """One offer with what came of it. `value`: see above."""

    strategy: Strategy
    status: str
    witnessed: bool
    gain: tuple[float, float, float] | None  # parent ÷ child with its interval; None where it failed
    modeled_gain: float | None  # the model's opinion of the untuned child, parent ÷ child

    @property
    def value(self) -> float:
        return max(0.0, math.log(self.gain[0])) if self.gain else 0.0


@dataclass(frozen=True)
class Situation:
    """A parent as a policy meets it, with every offer's outcome."""

    id: str
    task: TaskCard
    parent: Relative
    profile: str
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

    def state(self, **more: object) -> MacroState:
        return MacroState(self.task, self.parent, self.source, **more)  # type: ignore[arg-type]


def situations(rows: Sequence[truth.Row], problems: Problems) -> list[Situation]:
    """Parents that passed and whose every action was measured, in the order of the problems."""
    done = {row["id"] for row in truth.of_kind(rows, "done")}
    profiles = {row["id"]: row["text"] for row in truth.of_kind(rows, "profile")}
    parents = {row["id"]: row for row in truth.of_kind(rows, "parent") if row["status"] == "passed"}
    actions: dict[str, dict[str, truth.Row]] = {}
    for row in truth.of_kind(rows, "action"):
        actions.setdefault(row["parent"], {})[row["key"]] = row
    cards = {name: load(name).card() for name in {one.task for one in problems.parents}}
    found = []
    for number, one in enumerate(problems.parents, start=1):
        row = parents.get(one.id)
        if row is None or one.id not in done:
            continue
        evaluation = truth.evaluation_of(row["evaluation"])
        source = apply_knobs(one.source, evaluation.knobs)
        if source.sha256 != row["sha"]:
            raise ValueError(f"{one.id} is another kernel than the one measured: the truth belongs to other problems")
        relative = Relative(number, source, one.depth, 0, evaluation, one.path)
        mine = actions.get(one.id, {})
        known = tuple(_action(mine[key], row) for key in row["offers"] if key in mine)
        if len(known) > 1:
            found.append(Situation(one.id, cards[one.task], relative, profiles.get(one.id, ""), known))
    return found


def _action(row: truth.Row, parent: truth.Row) -> Action:
    passed = row["status"] == "passed"
    gain = truth.gain_of(row) if passed else None
    modeled = _modeled_gain(parent["modeled"], row["modeled"]) if passed else None
    return Action(strategy_of(row["strategy"]), row["status"], bool(row.get("witnessed")), gain, modeled)


def _modeled_gain(parent: Mapping[str, float | None], child: Mapping[str, float | None]) -> float | None:
    """Geometric mean over cases; None where one could not be modeled."""
    logs = [
        math.log(before / after) if before and (after := child.get(case)) else None for case, before in parent.items()
    ]
    known = [one for one in logs if one is not None]
    return math.exp(sum(known) / len(known)) if known and len(known) == len(logs) else None


# -- policies that need no model -------------------------------------------------------------------------------------


def uniform(situation: Situation) -> float:
    """Expected regret of an even choice."""
    return situation.best - float(situation.values.mean())


def modeled(situation: Situation) -> float:
    """Regret of the action that the time model likes best; even where it has no opinion."""
    known = [(one.modeled_gain, one.value) for one in situation.actions if one.modeled_gain is not None]
    return situation.best - max(known)[1] if known else uniform(situation)


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


def taught(found: Sequence[Situation], seed: int = 0) -> list[float]:
    """Regret by situation of a bandit that knows every action of every parent of the other tasks."""
    regrets = np.zeros(len(found))
    for task in dict.fromkeys(one.task.name for one in found):
        rng = np.random.default_rng([seed, 1])
        policy = BanditPolicy(discount=1.0, explore=0.0)
        for one in found:
            if one.task.name == task:
                continue
            seen = context(one.state())
            even = tuple(1.0 / len(one.offered) for _ in one.offered)
            for at in range(len(one.offered)):
                policy.learn(credit(one, Decision("all", one.offered, even, at, seen)))
        for at, one in enumerate(found):
            if one.task.name == task:
                chances = policy.propensities(context(one.state()), one.offered, rng)
                regrets[at] = one.best - float(np.dot(chances, one.values))
    return list(regrets)


def credit(situation: Situation, decision: Decision) -> Credit:
    """What a population would have told of that choice."""
    action = situation.actions[decision.chosen]
    log_gain = math.log(action.gain[0]) if action.gain else 0.0
    name = action.strategy.name if action.witnessed else "other"
    return Credit(0, 0, "bench", name, action.witnessed, log_gain, log_gain, 0, decision)


# -- intervals -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """A mean with a 95 % bootstrap interval over situations."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}], n = {self.n}"


def mean_of(values: Sequence[float], seed: int = 0) -> Mean:
    """Percentile bootstrap (Efron 1979); of paired differences, give the differences."""
    if not values:
        return Mean(math.nan, math.nan, math.nan, 0)
    data = np.asarray(values, dtype=float)
    rng = np.random.default_rng(seed)
    means = data[rng.integers(len(data), size=(RESAMPLES, len(data)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Mean(float(data.mean()), float(low), float(high), len(data))


NO_MODEL: Mapping[str, Callable[[Sequence[Situation]], list[float]]] = {
    "oracle": lambda found: [0.0 for _ in found],
    "uniform": lambda found: [uniform(one) for one in found],
    "modeled ranking": lambda found: [modeled(one) for one in found],
    "bandit": bandit,
    "bandit, taught": taught,
}
"""Regret by situation of every policy that needs no language model."""


def print_no_model(found: Sequence[Situation]) -> None:
    """The table of `--no-model`."""
    best = mean_of([one.best for one in found])
    print(f"{len(found)} parents, {sum(len(one.actions) for one in found)} actions; the best action gains {best} (log)")
    print(f"{'policy':<18}{'regret (log gain)':>44}{'of what there is':>18}")
    for name, regrets_of in NO_MODEL.items():
        regrets = mean_of(regrets_of(found))
        left = regrets.value / best.value if best.value > 0 else 0.0
        print(f"{name:<18}{regrets!s:>44}{left:>18.0%}", flush=True)
