"""The policy `trained`: a model of stored searches, corrected by a bandit that learns from the run."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evo_kernel.types import Credit, Decision, Strategy
from operators.learning.policy_features import UNIT, Earnings, sight_of
from operators.macro.bandit import BanditPolicy, ExpectedGain
from operators.macro.features import MacroState, context
from operators.macro.policies import draw

if TYPE_CHECKING:
    from operators.learning.batching import BatchedModel
    from operators.learning.network import OfferScorer

SPREAD = 0.2
"""Standard deviation of what a model expects, in log gain: chosen on families of the training tasks that a model was
not trained on (docs/guides/learning.md)."""


class TrainedPolicy:
    """Thompson sampling from what the run has taught, given what the model expects. Thread-safe; torch is imported with
    the first one made.

    A `model` that raises TimeoutError leaves the decision to the bandit alone.
    `explore`: the share of uniform choice mixed in, so that every propensity is at least explore / number of offers.
    """

    name = "trained"

    def __init__(self, model: OfferScorer | BatchedModel, explore: float = 0.05) -> None:
        self._model = model
        self._bandit = BanditPolicy(explore=explore)
        self._lock = threading.Lock()
        self._earnings = Earnings()

    @staticmethod
    def load(path: Path, explore: float = 0.05) -> TrainedPolicy:
        """Of a file, or a language model's folder. Raises UserError where it is no checkpoint of this version."""
        return TrainedPolicy(model_of(path), explore)

    def choose(self, state: MacroState, offered: tuple[Strategy, ...], rng: np.random.Generator) -> Decision:
        return draw(self.name, offered, self.propensities(state, offered, rng), context(state), rng)

    def propensities(self, state: MacroState, offered: tuple[Strategy, ...], rng: np.random.Generator) -> np.ndarray:
        """The probability of each offer; sums to 1."""
        import torch

        with self._lock:
            sight = sight_of(state, offered, self._earnings.outcomes)
        try:
            with torch.inference_mode():
                scores, values = self._model([sight])
        except TimeoutError:
            return self._bandit.propensities(context(state), offered, rng)
        found = scores[0].double().cpu().numpy()
        expected = UNIT * (found - found.max()) + max(float(values[0]), 0.0)
        told = ExpectedGain(expected, np.full(len(offered), SPREAD))
        return self._bandit.propensities(context(state), offered, rng, told)

    def learn(self, credit: Credit) -> None:
        """The model is told an action's own gain; shares of what its descendants gained say little of the action."""
        self._bandit.learn(credit)
        if credit.decision is None or credit.depth != 0 or not math.isfinite(credit.log_gain):
            return
        with self._lock:
            self._earnings.add(credit.decision.offered[credit.decision.chosen], credit.log_gain)


def model_of(path: Path, device: str | None = None) -> OfferScorer | BatchedModel:
    """Of a file of `train policy`, or of a folder of `train policy --model`. Raises UserError.

    `device`: for a language model, which is loaded there now; None: at the first decision, in a thread of its own.
    """
    if not path.is_dir():
        from operators.learning.network import load_policy

        return load_policy(path)[0]
    from operators.learning import language_model
    from operators.learning.batching import BatchedModel

    if device:
        return language_model.load_policy(path)[0].to(device)
    language_model.described(path)  # what is wrong is said before a run begins
    return BatchedModel(lambda: language_model.load_policy(path)[0])
