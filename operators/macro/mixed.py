"""Several policies as one: which of them decides is drawn for every choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evo_kernel.types import Credit, Decision, Strategy
from operators.macro.features import MacroState
from operators.macro.policies import Policy


class MixedPolicy:
    """Draws a policy by weight; all learn from every credit. Thread-safe when they are.

    `Decision.policy` and its probabilities are those of the policy that was drawn: asking all of them for theirs would
    pay for language models that were not drawn.
    """

    name = "mixed"

    def __init__(self, policies: Sequence[tuple[Policy, float]]) -> None:
        if not policies or any(weight < 0 for _, weight in policies) or not sum(weight for _, weight in policies) > 0:
            raise ValueError("a mixed policy needs policies with weights that are not negative, one above zero")
        self._policies = tuple(policy for policy, _ in policies)
        weights = np.array([weight for _, weight in policies], dtype=float)
        self._chances = weights / weights.sum()

    def choose(self, state: MacroState, offered: tuple[Strategy, ...], rng: np.random.Generator) -> Decision:
        drawn = self._policies[int(rng.choice(len(self._policies), p=self._chances))]
        return drawn.choose(state, offered, rng)

    def learn(self, credit: Credit) -> None:
        for policy in self._policies:
            policy.learn(credit)
