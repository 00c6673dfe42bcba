"""Several policies as one: which of them decides is drawn for every choice."""

from __future__ import annotations

import numpy as np

from evo_kernel.types import Credit, Decision, Strategy
from operators.macro.features import MacroState
from operators.macro.policies import Policy


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
