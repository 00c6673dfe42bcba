"""What a policy would have earned, from decisions that another one made: no kernel is judged again.

Each logged decision stands alone (a contextual bandit): what was seen, what was offered with which probability, what
was chosen, what it earned. With target probabilities π and logged ones μ, weights w = π(a) / μ(a), and a model q of the
reward that was fitted on the *other* decisions (cross-fitting):

    ips      mean of w·r                                        no bias, much variance
    snips    Σ w·r / Σ w                                        less variance, a little bias
    dr       mean of Σ_a π(a) q(a) + w·(r − q(chosen))          no bias if μ is right; less variance the better q is

Horvitz and Thompson 1952; Swaminathan and Joachims 2015; Dudík, Langford and Li 2011. Weights may be clipped, which
trades bias for variance: no estimate is better than the share of `effective` decisions says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evo_kernel.types import Credit, Strategy
from operators.learning.evaluation import Interval
from operators.macro.features import DESIGN_SIZE, FEATURES, MacroState, design
from operators.macro.policies import Policy

FOLDS = 5
RIDGE = 1.0


@dataclass(frozen=True)
class Logged:
    """One decision with what came of it. `state`: for targets that read more than the context."""

    context: tuple[float, ...]
    offered: tuple[Strategy, ...]
    probabilities: tuple[float, ...]
    chosen: int
    reward: float
    state: MacroState | None = None


Target = Callable[[Logged], Sequence[float]]
"""The probability of each offer under the policy that is asked about."""


@dataclass(frozen=True)
class Estimate:
    """Mean reward a decision, with 95 % intervals over decisions. `effective`: decisions' worth of weight,
    (Σw)² / Σw². `logged`: what the logging policy itself earned."""

    ips: Interval
    snips: float
    dr: Interval
    logged: Interval
    decisions: int
    effective: float


def logged_of(credits: Iterable[Credit]) -> list[Logged]:
    """From what a population tells: credits of candidates themselves whose decision was kept with its features.

    A reward is the log gain, 0 for a child that failed.
    """
    return [
        Logged(d.context, d.offered, d.probabilities, d.chosen, one.log_gain)
        for one in credits
        if (d := one.decision) is not None
        and one.depth == 0
        and len(d.context) == len(FEATURES)
        and math.isfinite(one.log_gain)
    ]


def target_of(policy: Policy, rng: np.random.Generator) -> Target:
    """The probabilities that a policy says it would choose with. Decisions must hold their state."""

    def probabilities(one: Logged) -> Sequence[float]:
        if one.state is None:
            raise ValueError("this decision was stored without its state: give a target that needs only the context")
        return policy.choose(one.state, one.offered, rng).probabilities

    return probabilities


def estimate(logged: Sequence[Logged], target: Target, clip: float = math.inf, seed: int = 0) -> Estimate:
    """Raises ValueError for fewer decisions than folds, and for a decision whose probability was zero."""
    if len(logged) < FOLDS:
        raise ValueError(f"{len(logged)} decisions are too few to estimate anything: at least {FOLDS}")
    if any(one.probabilities[one.chosen] <= 0.0 for one in logged):
        raise ValueError("a decision was made with probability 0: its policy did not say the truth about itself")
    wanted = [np.asarray(target(one), dtype=float) for one in logged]
    rewards = np.array([one.reward for one in logged])
    chances = np.array([one.probabilities[one.chosen] for one in logged])
    weights = np.minimum([pi[one.chosen] for pi, one in zip(wanted, logged, strict=True)] / chances, clip)
    modeled = _modeled(logged, rewards, seed)
    direct = np.array([float(pi @ q) for pi, q in zip(wanted, modeled, strict=True)])
    taken = np.array([q[one.chosen] for q, one in zip(modeled, logged, strict=True)])
    total = float(weights.sum())
    return Estimate(
        _interval(weights * rewards),
        float(weights @ rewards) / total if total else math.nan,
        _interval(direct + weights * (rewards - taken)),
        _interval(rewards),
        len(logged),
        total**2 / float(weights @ weights) if total else 0.0,
    )


def _interval(values: np.ndarray) -> Interval:
    """Normal: decisions are many."""
    mean = float(values.mean())
    reach = 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - reach, mean + reach)


def _modeled(logged: Sequence[Logged], rewards: np.ndarray, seed: int) -> list[np.ndarray]:
    """Predicted reward of each offer of each decision, by a ridge regression that has not seen that decision."""
    rows = np.zeros((len(logged), DESIGN_SIZE))
    for row, one in zip(rows, logged, strict=True):
        positions, values = design(one.context, one.offered[one.chosen])
        row[positions] = values
    fold = np.random.default_rng(seed).permutation(len(logged)) % FOLDS
    found: list[np.ndarray] = [np.zeros(0)] * len(logged)
    for number in range(FOLDS):
        seen = fold != number
        gram = rows[seen].T @ rows[seen] + RIDGE * np.eye(DESIGN_SIZE)
        theta = np.linalg.solve(gram, rows[seen].T @ rewards[seen])
        for at in map(int, np.flatnonzero(~seen)):
            one = logged[at]
            designs = [design(one.context, strategy) for strategy in one.offered]
            found[at] = np.array([float(theta[positions] @ values) for positions, values in designs])
    return found
