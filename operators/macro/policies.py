"""Policies: which of the offered strategies to try next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np

from evo_kernel.types import Credit, Decision, Strategy, Tried
from operators.macro.features import MacroState, context


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
