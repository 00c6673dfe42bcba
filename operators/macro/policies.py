"""Policies: which of the offered strategies to try on this parent.

A policy is rebuilt from credits alone, in the order of `tell`: resume is replay. Random numbers come from the brief's
own generator, so that the same attempt chooses the same way after a resume.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from evo_kernel.types import Brief, Credit, Decision, Strategy
from operators.macro.features import NAMES, features

OTHER = "other"


class Policy(Protocol):
    """Chooses among offered strategies, and learns from what came of it. Thread-safe."""

    name: str

    def choose(self, brief: Brief, offered: Sequence[Strategy], rng: np.random.Generator) -> Decision: ...

    def learn(self, credit: Credit) -> None: ...


class UniformPolicy:
    """Every offered strategy is as likely as any other; places of one strategy share its chance."""

    name = "uniform"

    def choose(self, brief: Brief, offered: Sequence[Strategy], rng: np.random.Generator) -> Decision:
        names = sorted({strategy.name for strategy in offered})
        places = {name: sum(s.name == name for s in offered) for name in names}
        probabilities = tuple(1 / len(names) / places[s.name] for s in offered)
        chosen = int(rng.choice(len(offered), p=probabilities))
        return Decision(self.name, tuple(offered), probabilities, chosen, features(brief, offered[chosen]))

    def learn(self, credit: Credit) -> None:
        del credit


class BanditPolicy:
    """Contextual Thompson sampling with discounting.

    Bayesian linear regression of a strategy's reward on its features, one model a strategy (Agrawal and Goyal 2013,
    "Thompson Sampling for Contextual Bandits with Linear Payoffs"), with exponential forgetting (Russac, Vernade and
    Cappé 2019, "Weighted Linear Bandits for Non-Stationary Environments"):

        A ← γ A + (1 − γ) λ I + x xᵀ,   b ← γ b + r x,   θ ~ N(A⁻¹ b, v² A⁻¹),   choose argmax θ·x

    Propensities are the shares of wins in `draws` posterior draws, mixed with `explore` of the uniform policy; the
    choice is then drawn from exactly these propensities.
    """

    name = "bandit"

    def __init__(self, forget: float = 0.995, ridge: float = 1.0, spread: float = 0.3, explore: float = 0.1) -> None:
        self._forget, self._ridge, self._spread, self._explore = forget, ridge, spread, explore
        self._draws = 64
        self._lock = threading.Lock()
        self._models: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def choose(self, brief: Brief, offered: Sequence[Strategy], rng: np.random.Generator) -> Decision:
        contexts = np.array([features(brief, strategy) for strategy in offered])
        with self._lock:
            scores = np.stack([self._sample(s.name, x, rng) for s, x in zip(offered, contexts, strict=True)])
        scores += rng.normal(0.0, 1e-9, scores.shape)  # equal scores must not favour the first
        wins = np.bincount(np.argmax(scores, axis=0), minlength=len(offered)) / self._draws
        probabilities = (1 - self._explore) * wins + self._explore / len(offered)
        probabilities /= probabilities.sum()
        chosen = int(rng.choice(len(offered), p=probabilities))
        context = tuple(float(value) for value in contexts[chosen])
        return Decision(self.name, tuple(offered), tuple(float(p) for p in probabilities), chosen, context)

    def learn(self, credit: Credit) -> None:
        """Take in a credit that a decision led to; an unwitnessed edit says nothing of the strategy it claimed."""
        if credit.decision is None or credit.strategy == OTHER or len(credit.decision.context) != len(NAMES):
            return
        x = np.array(credit.decision.context)
        with self._lock:
            precision, weighted = self._models.get(credit.strategy, self._fresh())
            identity = np.eye(len(NAMES))
            precision = self._forget * precision + (1 - self._forget) * self._ridge * identity + np.outer(x, x)
            self._models[credit.strategy] = (precision, self._forget * weighted + credit.reward * x)

    def _fresh(self) -> tuple[np.ndarray, np.ndarray]:
        return self._ridge * np.eye(len(NAMES)), np.zeros(len(NAMES))

    def _sample(self, name: str, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Posterior draws of the reward at x: it is normal with mean x·A⁻¹b and variance v² x·A⁻¹x."""
        precision, weighted = self._models.get(name, self._fresh())
        solved = np.linalg.solve(precision, np.stack([weighted, x], axis=1))
        mean, variance = float(x @ solved[:, 0]), float(x @ solved[:, 1])
        return mean + self._spread * np.sqrt(max(variance, 0.0)) * rng.standard_normal(self._draws)


POLICIES: dict[str, type[UniformPolicy] | type[BanditPolicy]] = {"uniform": UniformPolicy, "bandit": BanditPolicy}
