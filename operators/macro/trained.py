"""A policy that was trained before the run: `evo-kernel train policy` makes its checkpoint.

Its weights stay as they are during a run. What it is told of earlier choices (mean log gain of each action so far) is
part of what it sees, and it was trained to make use of that: it begins with what other tasks taught, and adapts.
"""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evo_kernel.types import Credit, Decision, Strategy
from operators.learning.sight import Earnings, sight_of
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
        self._earnings = Earnings()

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

        with self._lock, torch.inference_mode():
            scores = self._model([sight_of(state, offered, self._earnings.outcomes)])[0][0]
        chances = scores.double().softmax(-1).cpu().numpy()
        chances = (1.0 - self._explore) * chances + self._explore / len(offered)
        return chances / chances.sum()

    def learn(self, credit: Credit) -> None:
        """An action's own gain; shares of what its descendants gained say little of the action."""
        if credit.decision is None or credit.depth != 0 or not math.isfinite(credit.log_gain):
            return
        with self._lock:
            self._earnings.add(credit.decision.offered[credit.decision.chosen], credit.log_gain)
