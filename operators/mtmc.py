"""Macro thinking, micro coding: a policy picks a strategy for the parent, a coder implements it.

One proposal is one strategy, or a short chain of them: with probability `more` after each step another is picked on the
result, up to `max_steps`. Each further step is probed first, and rolled back to the last good source when it fails; a
single step is not probed, since the judge checks it next anyway. The proposal's strategy is the first one kept; the
others are its steps.
"""

from __future__ import annotations

import time

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import (
    Brief,
    Credit,
    Decision,
    Evaluation,
    Probe,
    Proposal,
    Source,
    Step,
    Strategy,
)
from operators.macro.catalogue import witnessed
from operators.macro.policies import Policy
from operators.micro.coder import Coder


class MtmcOperator:
    """The Operator over one policy and one coder. Thread-safe when both are."""

    def __init__(
        self, policy: Policy, coder: Coder, *, max_steps: int = 3, more: float = 0.3, name: str = "mtmc"
    ) -> None:
        self.name = name
        self._policy, self._coder = policy, coder
        self._max_steps, self._more = max_steps, more

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        """Pick, implement, perhaps pick again. Raises OperatorFailed with the decisions made by then."""
        began = time.monotonic()
        rng = np.random.default_rng(brief.seed)
        chain = _Chain(brief.parent.source)
        while len(chain.kept) < self._max_steps and chain.failures < 2:
            if chain.kept and rng.random() >= self._more:
                break
            step = self._step(brief, chain, rng)
            if step is None:
                break
        if not chain.kept:
            raise OperatorFailed(
                chain.trouble, operator=self.name, decisions=tuple(chain.decisions), steps=tuple(chain.steps)
            )
        probes = self._roll_back(chain, probe)
        return Proposal(
            source=chain.sources[-1],
            operator=self.name,
            strategy=chain.kept[0],
            parents=(("parent", brief.parent.candidate),),
            decisions=tuple(chain.decisions),
            steps=tuple(chain.steps),
            probes=probes,
            wall_s=time.monotonic() - began,
        )

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        """By the catalogue's sign, in the plans of the slowest search case."""
        if proposal.strategy is None or parent is None:
            return False
        return witnessed(proposal.strategy.name, parent.features, child.features)

    def learn(self, credit: Credit) -> None:
        self._policy.learn(credit)

    def _step(self, brief: Brief, chain: _Chain, rng: np.random.Generator) -> Strategy | None:
        """One pick and its edit; None when nothing is left to pick."""
        offered = self._open(brief, chain)
        if not offered:
            return None
        decision = self._policy.choose(brief, offered, rng)
        strategy = offered[decision.chosen]
        chain.decisions.append(decision)
        try:
            source = self._coder.implement(chain.sources[-1], strategy, brief.task)
        except OperatorFailed as failure:
            chain.failures += 1
            chain.refused.add(strategy.key)
            chain.trouble = failure.reason
            chain.steps.append(Step(strategy.key, "rolled back", failure.reason))
            return strategy
        chain.keep(strategy, source)
        return strategy

    def _open(self, brief: Brief, chain: _Chain) -> tuple[Strategy, ...]:
        """What is offered and was not tried yet on this parent."""
        offered = self._coder.offer(chain.sources[-1], brief.task)
        tried = {past.strategy.key for past in brief.tried} if not chain.kept else set()
        open_ones = tuple(s for s in offered if s.key not in tried and s.key not in chain.refused)
        if not open_ones and not chain.kept:
            chain.trouble = (
                "everything that is offered on this parent was tried" if offered else "nothing applies to this source"
            )
        return open_ones

    def _roll_back(self, chain: _Chain, probe: Probe) -> int:
        """Probe a chain of several steps, and take back its last ones until it passes. Returns the probes made."""
        probes = 0
        while len(chain.kept) > 1:
            probes += 1
            evaluation = probe(chain.sources[-1])
            if evaluation.passed:
                break
            dropped = chain.kept.pop()
            chain.sources.pop()
            chain.steps.append(Step(dropped.key, "rolled back", evaluation.reason))
        return probes


class _Chain:
    """Sources and steps of one proposal in the making."""

    def __init__(self, source: Source) -> None:
        self.sources = [source]
        self.kept: list[Strategy] = []
        self.steps: list[Step] = []
        self.decisions: list[Decision] = []
        self.refused: set[str] = set()
        self.failures = 0
        self.trouble = "nothing applies to this source"

    def keep(self, strategy: Strategy, source: Source) -> None:
        self.kept.append(strategy)
        self.sources.append(source)
        self.steps.append(Step(strategy.key, "kept"))
