"""Several operators as one: which of them makes the next attempt is drawn by weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from evo_kernel.errors import InfraError, OperatorFailed
from evo_kernel.types import Brief, Credit, Evaluation, Operator, Probe, Proposal, Resumes


class MixOperator:
    """Draws one of `operators` for each attempt; when that one fails at no cost, draws among the others.

    `weights`: by operator name, relative, 1 where not given. `refusal`: why an operator, by its name, is not to be
    asked now; empty where it may be. Thread-safe.
    """

    name = "mix"

    def __init__(
        self,
        operators: Sequence[Operator],
        weights: Mapping[str, float] | None = None,
        refusal: Callable[[str], str] = lambda operator: "",
    ) -> None:
        self.operators = {operator.name: operator for operator in operators}
        given = dict(weights or {})
        unknown = sorted(given.keys() - self.operators.keys())
        if not operators or len(self.operators) != len(operators):
            raise ValueError("a mix needs at least one operator, each with a name of its own")
        if unknown:
            raise ValueError(f"weights for unknown operators {unknown}; the mix has {sorted(self.operators)}")
        self._weights = {name: float(given.get(name, 1.0)) for name in self.operators}
        if min(self._weights.values()) < 0 or not sum(self._weights.values()) > 0:
            raise ValueError(f"weights must not be negative, and one must be above zero: {self._weights}")
        self._refusal = refusal

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        # A stream of its own: the drawn operator starts from brief.seed too, and must not see the same numbers.
        rng = np.random.default_rng(brief.seed).spawn(1)[0]
        left = [name for name, weight in self._weights.items() if weight > 0]
        for operator in self.operators.values():  # an attempt that one of them has begun in an earlier session
            if isinstance(operator, Resumes) and operator.holds(brief):
                self._admit(operator.name, paused=True)  # it waits for a session that can go on with it
                return operator.propose(brief, probe)
        reasons, exhausted = [], True
        while True:
            weights = np.array([self._weights[name] for name in left])
            name = left[int(rng.choice(len(left), p=weights / weights.sum()))]
            try:
                self._admit(name)
                return self.operators[name].propose(brief, probe)
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
        operator = self.operators.get(proposal.operator)
        return operator is not None and operator.witnessed(proposal, parent, child)

    def learn(self, credit: Credit) -> None:
        """To whoever made the proposal; credits of operators that are no longer in the mix are passed over."""
        if credit.operator in self.operators:
            self.operators[credit.operator].learn(credit)

    def _admit(self, name: str, paused: bool = False) -> None:
        """Raises OperatorFailed, at no cost, where an operator is not to be asked now."""
        if reason := self._refusal(name):
            raise OperatorFailed(reason, operator=name, paused=paused)
