"""A policy that was trained before the run: `evo-kernel train policy` makes its checkpoint.

It learns nothing during a run: what it knows comes from other tasks, the bandit knows this one.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evo_kernel.types import Credit, Decision, Strategy
from operators.macro.features import MacroState, context
from operators.macro.policies import draw

if TYPE_CHECKING:
    from operators.learning.network import Scorer


class TrainedPolicy:
    """Draws an offer by the softmax of the model's scores. Thread-safe; torch is imported with the first one made.

    `explore`: the share of uniform choice mixed in, so that every propensity is at least explore / number of offers.
    """

    name = "trained"

    def __init__(self, model: Scorer, explore: float = 0.05) -> None:
        if not 0.0 <= explore <= 1.0:
            raise ValueError(f"explore must lie in [0, 1], not {explore}")
        self._model, self._explore = model, explore
        self._lock = threading.Lock()

    @staticmethod
    def load(path: Path, explore: float = 0.05) -> TrainedPolicy:
        """Raises UserError where the file is no checkpoint of this version."""
        from operators.learning.checkpoint import load

        return TrainedPolicy(load(path)[0], explore)

    def choose(self, state: MacroState, offered: tuple[Strategy, ...], rng: np.random.Generator) -> Decision:
        return draw(self.name, offered, self.propensities(state, offered), context(state), rng)

    def propensities(self, state: MacroState, offered: tuple[Strategy, ...]) -> np.ndarray:
        """The probability of each offer; sums to 1."""
        import torch

        from operators.learning.sight import sight_of

        with self._lock, torch.inference_mode():
            scores = self._model([sight_of(state, offered)])[0][0]
        chances = scores.double().softmax(-1).cpu().numpy()
        chances = (1.0 - self._explore) * chances + self._explore / len(offered)
        return chances / chances.sum()

    def learn(self, credit: Credit) -> None:
        """It was trained before."""
