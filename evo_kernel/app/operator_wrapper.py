"""What a run puts around its operators."""

from __future__ import annotations

from evo_kernel.types import Brief, Credit, Evaluation, Operator, Probe, Proposal


class Around:
    """An operator that passes everything on to another one; those made from it change one thing."""

    def __init__(self, operator: Operator) -> None:
        self.name = operator.name
        self._operator = operator

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        return self._operator.propose(brief, probe)

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return self._operator.witnessed(proposal, parent, child)

    def learn(self, credit: Credit) -> None:
        self._operator.learn(credit)
