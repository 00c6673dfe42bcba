"""The contextual bandit (discounted linear Thompson sampling over strategy × features).

The reward of strategy s in context c is modeled as x·θ + noise, with x = `features.design(c, s)`. With discount γ,
prior precision Λ (diagonal) and noise variance σ²:

    V = Λ + Σ γ^age · x xᵀ        b = Σ γ^age · x r        θ ~ N(V⁻¹ b, σ² V⁻¹)

This is Thompson sampling for linear bandits (Agrawal and Goyal 2013) with the exponential weights of Russac, Vernade
and Cappé 2019 (D-LinUCB; sampled instead of optimistic as in Kim and Tewari 2020), and a prior that is not discounted.
σ² is the discounted mean square of what the model did not foresee, with a prior worth PRIOR_WEIGHT observations.

What is observed is a total: a strategy's own reward and, later, shares of what its descendants gained. A share is thus
added to b alone, as if it had been part of the first reward; V counts choices.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np

from evo_kernel.types import Credit, Decision, Strategy
from operators.macro.features import CONTEXT_AT, DESIGN_SIZE, FEATURES, MacroState, context, design
from operators.macro.policies import draw

DRAWS = 512  # posterior draws by which propensities are estimated
PRIOR_WEIGHT = 10.0
PRIOR_NOISE = 0.25  # of log gain: standard deviation before anything is known
CONTEXT_PRECISION = 16.0  # against 1 for a strategy's own effect: all context together moves as much as that
REWARD_LIMIT = 2.0  # about 7 times faster: one lucky leap must not outweigh a hundred steps
RESCALE_AT = 1e9


FUSION_SPREAD, USUAL_SPREAD = 0.2, 0.1
"""Standard deviations, in log gain, of what a fusion gains beyond the traffic that it saves, and of the means that
`catalogue.USUAL_GAINS` is about."""
UNKNOWN = 1e3
"""A spread that says nothing."""


@dataclass(frozen=True)
class ExpectedGain:
    """What is expected of each offer before the run. `spreads`: standard deviations of its errors, in log gain."""

    log_gains: np.ndarray
    spreads: np.ndarray


class BanditPolicy:
    """Learns online which strategies pay, where, and lately. Thread-safe.

    `discount`: γ per observed choice (0.995 forgets half in about 140). `explore`: the share of uniform choice mixed
    in, so that every propensity is at least explore / number of offers.

    Propensities: DRAWS posterior draws with the caller's generator give each offer its share of wins (offers that the
    model cannot tell apart, the same strategy at another region, divide theirs evenly); the choice is then drawn from
    these very numbers, so the stored probability is the one that was used, not an approximation of it.
    """

    name = "bandit"

    def __init__(self, discount: float = 0.995, explore: float = 0.05) -> None:
        if not 0.0 < discount <= 1.0 or not 0.0 <= explore <= 1.0:
            raise ValueError(f"discount must lie in (0, 1] and explore in [0, 1], not {discount} and {explore}")
        self._discount, self._explore = discount, explore
        self._lock = threading.Lock()
        self._prior = np.full(DESIGN_SIZE, CONTEXT_PRECISION)
        self._prior[:CONTEXT_AT] = 1.0
        # Sums are kept with weights that grow by 1/γ instead of shrinking the sums: an update touches few numbers.
        self._weight = 1.0
        self._precision = np.zeros((DESIGN_SIZE, DESIGN_SIZE))
        self._response = np.zeros(DESIGN_SIZE)
        self._squares = 0.0
        self._observed = 0.0
        self._posterior: tuple[np.ndarray, np.ndarray, float] | None = None

    def choose(self, state: MacroState, offered: tuple[Strategy, ...], rng: np.random.Generator) -> Decision:
        seen, known = context(state), [state.expected_gains.get(one.key) for one in offered]
        expected = None
        if any(gain is not None for gain in known):
            spreads = np.array(
                [
                    UNKNOWN if gain is None else FUSION_SPREAD if one.family == "fusion" else USUAL_SPREAD
                    for one, gain in zip(offered, known, strict=True)
                ]
            )
            expected = ExpectedGain(np.array([gain or 0.0 for gain in known]), spreads)
        return draw(self.name, offered, self.propensities(seen, offered, rng, expected), seen, rng)

    def propensities(
        self,
        seen: tuple[float, ...],
        offered: tuple[Strategy, ...],
        rng: np.random.Generator,
        expected: ExpectedGain | None = None,
    ) -> np.ndarray:
        """The probability of each offer; sums to 1. What is `expected` of each offer counts as one observation of it,
        for this decision alone."""
        kinds: dict[object, int] = {}
        known = expected.spreads < UNKNOWN if expected is not None else np.zeros(len(offered), bool)
        alike = [(one.name, one.family, one.parameters) for one in offered]
        keys = [one if apart else kind for one, kind, apart in zip(offered, alike, known, strict=True)]
        group = [kinds.setdefault(key, len(kinds)) for key in keys]
        rows = np.zeros((len(kinds), DESIGN_SIZE))
        for strategy, row in zip(offered, group, strict=True):
            positions, values = design(seen, strategy)
            rows[row, positions] = values
        with self._lock:
            if self._posterior is None:
                self._posterior = self._solve()
            coefficients, inverse, variance = self._posterior
        mean, covariance = rows @ coefficients, variance * (rows @ inverse @ rows.T)
        if expected is not None:
            gains, spreads = np.zeros(len(kinds)), np.zeros(len(kinds))
            gains[group], spreads[group] = expected.log_gains, expected.spreads
            weight = covariance @ np.linalg.inv(covariance + np.diag(spreads**2))
            mean, covariance = mean + weight @ (gains - mean), covariance - weight @ covariance
        sampled = mean + rng.standard_normal((DRAWS, len(kinds))) @ _root(covariance).T
        wins = np.bincount(sampled.argmax(axis=1), minlength=len(kinds)) / DRAWS
        members = np.bincount(group, minlength=len(kinds))
        chances = (1.0 - self._explore) * (wins / members)[group] + self._explore / len(offered)
        return chances / chances.sum()

    def learn(self, credit: Credit) -> None:
        """An unwitnessed edit is no evidence for the strategy it claims, but its failure is evidence against it."""
        decision = credit.decision
        if decision is None or len(decision.context) != len(FEATURES):
            return  # nobody chose, or an older version saw something else
        reward = credit.reward if credit.witnessed else min(credit.reward, 0.0)
        if not math.isfinite(reward):
            return
        reward = min(max(reward, -REWARD_LIMIT), REWARD_LIMIT)
        positions, values = design(decision.context, decision.offered[decision.chosen])
        with self._lock:
            self._posterior = None
            if credit.depth == 0:
                self._observe(positions, values, reward)
            self._response[positions] += self._weight * reward * values

    def _observe(self, positions: np.ndarray, values: np.ndarray, reward: float) -> None:
        self._weight /= self._discount
        if self._weight > RESCALE_AT:
            self._precision /= self._weight
            self._response /= self._weight
            self._squares /= self._weight
            self._observed /= self._weight
            self._weight = 1.0
        self._precision[np.ix_(positions, positions)] += self._weight * np.outer(values, values)
        self._squares += self._weight * reward * reward
        self._observed += self._weight

    def _solve(self) -> tuple[np.ndarray, np.ndarray, float]:
        inverse = np.linalg.inv(self._precision / self._weight + np.diag(self._prior))
        response = self._response / self._weight
        coefficients = inverse @ response
        # Σ w (r − xθ)² + θᵀΛθ = Σ w r² − bᵀθ for the posterior mean: what is left of the rewards unexplained.
        unexplained = max(self._squares / self._weight - float(response @ coefficients), 0.0)
        observed = self._observed / self._weight
        variance = (PRIOR_WEIGHT * PRIOR_NOISE**2 + unexplained) / (PRIOR_WEIGHT + observed)
        return coefficients, inverse, variance


def _root(covariance: np.ndarray) -> np.ndarray:
    """A matrix whose square is the covariance; rounding may have left it a hair from positive."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return vectors * np.sqrt(np.maximum(values, 0.0))
