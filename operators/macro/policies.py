"""Policies, which choose among offered strategies, and the memory of what strategies have earned in a population."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from evo_kernel.types import Credit, Decision, Strategy, Tried
from operators.macro.catalogue import CATALOGUE, UNGUIDED
from operators.macro.features import MacroState, context


@dataclass
class _Earned:
    """`log_gain`: sum over attempts; 0 for one that failed."""

    strategy: Strategy
    times: int = 0
    witnessed: int = 0
    log_gain: float = 0.0

    @property
    def mean(self) -> float:
        return self.log_gain / self.times

    def line(self) -> str:
        gain, name = (math.exp(self.mean) - 1) * 100, self.strategy.name
        # A strategy that was made up has no sign: "seen 0 times" would speak against it.
        seen = f", seen in the plan {_times(self.witnessed)}" if name in CATALOGUE else ""
        return f"- {name}: {_times(self.times)}{seen}, {gain:+.1f} % speed on average"


class StrategyMemory:
    """Thread-safe. Several policies may share one: a candidate counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._earned: dict[str, _Earned] = {}
        self._counted: set[int] = set()

    def learn(self, credit: Credit) -> None:
        if credit.decision is None or credit.depth != 0 or not math.isfinite(credit.log_gain):
            return
        strategy = credit.decision.offered[credit.decision.chosen]
        with self._lock:
            if credit.candidate in self._counted or strategy.name == UNGUIDED.name:
                return
            self._counted.add(credit.candidate)
            earned = self._earned.setdefault(strategy.name, _Earned(strategy))
            earned.times += 1
            earned.witnessed += credit.witnessed
            earned.log_gain += credit.log_gain

    def own(self, most: int) -> list[Strategy]:
        """Strategies that policies of this population made up, those that earned most first."""
        with self._lock:
            made_up = [earned for name, earned in self._earned.items() if name not in CATALOGUE]
        return [earned.strategy for earned in sorted(made_up, key=lambda earned: -earned.mean)[:most]]

    def paid(self) -> list[str]:
        """A line a strategy, those that moved most first."""
        with self._lock:
            return [earned.line() for earned in sorted(self._earned.values(), key=lambda earned: -abs(earned.mean))]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


@runtime_checkable
class Policy(Protocol):
    """Macro thinking. Thread-safe; its state is made by `learn` alone, so that resume is replay."""

    name: str

    def choose(self, state: MacroState, offered: tuple[Strategy, ...], rng: np.random.Generator) -> Decision:
        """Pick one of `offered` (never empty)."""
        ...

    def learn(self, credit: Credit) -> None:
        """Take in what came of an earlier decision, in the order of the population's credits."""
        ...


class UniformPolicy:
    """Every offer is as likely as every other; learns nothing."""

    name = "uniform"

    def choose(self, state: MacroState, offered: tuple[Strategy, ...], rng: np.random.Generator) -> Decision:
        probabilities = np.full(len(offered), 1.0 / len(offered))
        return draw(self.name, offered, probabilities, context(state), rng)

    def learn(self, credit: Credit) -> None:
        """Nothing to learn."""


class MixedPolicy:
    """Draws one of some policies; all learn from every credit. Thread-safe when they are.

    `Decision.policy` and its probabilities are those of the policy that was drawn: asking all of them for theirs would
    pay for language models that were not drawn.
    """

    name = "mixed"

    def __init__(self, *policies: Policy) -> None:
        self._policies = policies

    def choose(self, state: MacroState, offered: tuple[Strategy, ...], rng: np.random.Generator) -> Decision:
        return self._policies[int(rng.integers(len(self._policies)))].choose(state, offered, rng)

    def learn(self, credit: Credit) -> None:
        for policy in self._policies:
            policy.learn(credit)


def draw(
    policy: str, offered: tuple[Strategy, ...], chances: np.ndarray, seen: tuple[float, ...], rng: np.random.Generator
) -> Decision:
    """The decision that picks each offer with exactly its probability."""
    chosen = int(rng.choice(len(offered), p=chances))
    return Decision(policy, offered, tuple(float(chance) for chance in chances), chosen, seen)


def untried(offered: Iterable[Strategy], tried: Iterable[Tried], tries: int = 1) -> tuple[Strategy, ...]:
    """The offers that were tried fewer than `tries` times on this parent, whatever came of it.

    Rewriting is deterministic, so once is enough; a language model may do better the second time.
    """
    known = Counter(entry.strategy.key for entry in tried)
    return tuple(strategy for strategy in offered if known[strategy.key] < tries)
