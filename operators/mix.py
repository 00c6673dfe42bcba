"""A mix of operators: each attempt draws one by weight; a drawn one that has nothing to offer passes to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Credit, Decision, Evaluation, Operator, Probe, Proposal, Step

_SALT = 0x6D6978  # keeps the mix's draws apart from those of the operators, which use the same seed


class MixOperator:
    """The Operator over several. `weights` by operator name; those without one get 1."""

    name = "mix"

    def __init__(self, operators: Sequence[Operator], weights: Mapping[str, float]) -> None:
        self._operators = {operator.name: operator for operator in operators}
        self._weights = np.array([weights.get(name, 1.0) for name in self._operators], dtype=float)

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        rng = np.random.default_rng([*brief.seed, _SALT])
        names = list(self._operators)
        order = rng.choice(len(names), size=int((self._weights > 0).sum()), replace=False, p=self._shares())
        failures: list[OperatorFailed] = []
        for index in order:
            try:
                return self._operators[names[index]].propose(brief, probe)
            except OperatorFailed as failure:
                failures.append(failure)
        decisions: tuple[Decision, ...] = tuple(d for failure in failures for d in failure.decisions)
        steps: tuple[Step, ...] = tuple(s for failure in failures for s in failure.steps)
        calls = tuple(c for failure in failures for c in failure.calls)
        reasons = "; ".join(f"{names[i]}: {failure.reason}" for i, failure in zip(order, failures, strict=True))
        raise OperatorFailed(reasons, operator=names[order[0]], decisions=decisions, steps=steps, calls=calls)

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        operator = self._operators.get(proposal.operator)
        return operator is not None and operator.witnessed(proposal, parent, child)

    def learn(self, credit: Credit) -> None:
        for operator in self._operators.values():
            operator.learn(credit)

    def _shares(self) -> np.ndarray:
        return self._weights / self._weights.sum()
