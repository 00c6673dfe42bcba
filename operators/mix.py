"""Several operators as one: which of them makes the next attempt is drawn by weight, or learnt from credit."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from evo_kernel.errors import InfraError, OperatorFailed
from evo_kernel.types import Brief, Credit, Evaluation, Operator, Probe, Proposal, Resumes

FORGET = 0.99  # weight of an operator's older credits, per credit
FLOOR = 0.2  # share of attempts that go by the weights even when the mix adapts
PRIOR_WEIGHT, PRIOR_DEVIATION = 4.0, 0.25  # observations that the prior is worth; log gain


class _Record:
    """Discounted sums of one operator's rewards: count n, sum s and sum of squares q."""

    def __init__(self) -> None:
        self.n = self.s = self.q = 0.0

    def observe(self, reward: float, new: bool) -> None:
        """A share of a descendant's gain (`new` False) adds to rewards already counted."""
        if new:
            self.n, self.s, self.q = FORGET * self.n + 1.0, FORGET * self.s, FORGET * self.q + reward * reward
        self.s += reward

    def sample(self, rng: np.random.Generator) -> float:
        """From N(s / (n + n0), σ² / (n + n0)), σ² the mean square with the prior's."""
        weight = self.n + PRIOR_WEIGHT
        variance = (self.q + PRIOR_WEIGHT * PRIOR_DEVIATION**2) / weight
        return float(rng.normal(self.s / weight, math.sqrt(variance / weight)))


def no_refusal(operator: str) -> str:
    """Any operator may be asked at any time."""
    del operator
    return ""


class MixOperator:
    """Draws one of `operators` for each attempt; when that one fails at no cost, draws among the others.

    `weights`: by operator name, relative, 1 where not given. `adaptive`: a share of 1 − FLOOR of the draws goes
    instead to the operator with the largest sampled reward (Thompson sampling on discounted credit). `refusal`: why an
    operator, by its name, is not to be asked now; empty where it may be. Thread-safe.
    """

    name = "mix"

    def __init__(
        self,
        operators: Sequence[Operator],
        weights: Mapping[str, float] | None = None,
        adaptive: bool = False,
        refusal: Callable[[str], str] = no_refusal,
    ) -> None:
        self._operators = {operator.name: operator for operator in operators}
        given = dict(weights or {})
        unknown = sorted(given.keys() - self._operators.keys())
        if not operators or len(self._operators) != len(operators):
            raise ValueError("a mix needs at least one operator, each with a name of its own")
        if unknown:
            raise ValueError(f"weights for unknown operators {unknown}; the mix has {sorted(self._operators)}")
        self._weights = {name: float(given.get(name, 1.0)) for name in self._operators}
        if min(self._weights.values()) < 0 or not sum(self._weights.values()) > 0:
            raise ValueError(f"weights must not be negative, and one must be above zero: {self._weights}")
        self._adaptive, self._refusal = adaptive, refusal
        self._lock = threading.Lock()
        self._records = {name: _Record() for name in self._operators}

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        # A stream of its own: the drawn operator starts from brief.seed too, and must not see the same numbers.
        rng = np.random.default_rng(brief.seed).spawn(1)[0]
        left = [name for name, weight in self._weights.items() if weight > 0]
        for operator in self._operators.values():  # an attempt that one of them has begun in an earlier session
            if isinstance(operator, Resumes) and operator.holds(brief):
                self._admit(operator.name, paused=True)  # it waits for a session that can go on with it
                return operator.propose(brief, probe)
        reasons, exhausted = [], True
        while True:
            name = self._draw(left, rng)
            try:
                self._admit(name)
                return self._operators[name].propose(brief, probe)
            except OperatorFailed as failure:
                failure.operator = failure.operator or name
                reasons.append(f"{name}: {failure.reason}")
                exhausted = exhausted and failure.exhausted
                left.remove(name)
                if failure.calls or failure.steps or failure.decisions:
                    raise
                if not left:
                    raise OperatorFailed("; ".join(reasons), operator=name, exhausted=exhausted) from failure
            except InfraError as error:
                error.operator = error.operator or name
                raise

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        operator = self._operators.get(proposal.operator)
        return operator is not None and operator.witnessed(proposal, parent, child)

    def learn(self, credit: Credit) -> None:
        """To whoever made the proposal; credits of operators that are no longer in the mix are passed over."""
        operator = self._operators.get(credit.operator)
        if operator is None:
            return
        operator.learn(credit)
        if math.isfinite(credit.reward):
            with self._lock:
                self._records[credit.operator].observe(credit.reward, new=credit.depth == 0)

    def _admit(self, name: str, paused: bool = False) -> None:
        """Raises OperatorFailed, at no cost, where an operator is not to be asked now."""
        if reason := self._refusal(name):
            raise OperatorFailed(reason, operator=name, paused=paused)

    def _draw(self, names: Sequence[str], rng: np.random.Generator) -> str:
        weights = np.array([self._weights[name] for name in names])
        by_weight = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        if not self._adaptive or rng.random() < FLOOR:
            return by_weight
        with self._lock:
            sampled = {name: self._records[name].sample(rng) for name in names}
        return max(names, key=lambda name: sampled[name])
