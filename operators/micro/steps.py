"""Micro coding in steps: each is kept, or rolled back to the last good source.

A walk writes down one Decision and one Step for each thing that it tries, in the same order, so that what happened can
be read from a proposal alone: see `kept_strategies`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Decision, Probe, Proposal, Source, Step, Strategy
from operators.micro.coder import Coder

KEPT, ROLLED_BACK = "kept", "rolled back"


class Walk:
    """From the parent's source, step by step. One attempt, one thread."""

    def __init__(self, brief: Brief, coder: Coder, rng: np.random.Generator, probe: Probe | None) -> None:
        """`probe` judges each step when given; without it a step is kept as soon as it could be carried out."""
        self.source: Source = brief.parent.source
        self.kept: list[Strategy] = []
        self._brief, self._coder, self._rng, self._probe = brief, coder, rng, probe
        self._decisions: list[Decision] = []
        self._steps: list[Step] = []
        self._probes = 0
        self._failed: set[str] = set()  # keys that failed on the source as it stands
        self._known = {relative.source.sha256: relative.candidate for relative in (*brief.inspirations, brief.parent)}
        self._started = time.monotonic()

    def offers(self) -> tuple[Strategy, ...]:
        """What may be tried on the source as it stands, without what already failed on it."""
        offered = self._coder.offer(self.source, self._brief.task)
        return tuple(strategy for strategy in offered if strategy.key not in self._failed)

    def take(self, decision: Decision) -> bool:
        """Carry out what was chosen. False when it was rolled back."""
        started = time.monotonic()
        strategy = decision.offered[decision.chosen]
        source, reason = self._carry_out(strategy)
        if source is None:
            self._failed.add(strategy.key)
        else:
            self.source = source
            self.kept.append(strategy)
            self._failed.clear()
        outcome = ROLLED_BACK if source is None else KEPT
        self._note(decision, Step(strategy.key, outcome, reason, time.monotonic() - started))
        return source is not None

    def stop(self, decision: Decision) -> None:
        """Write down that the policy chose to end here."""
        self._note(decision, Step(decision.offered[decision.chosen].key, KEPT))

    def proposal(self, operator: str, parents: Iterable[tuple[str, int]] = ()) -> Proposal:
        """What was kept, claimed by its first strategy; there must be one."""
        return Proposal(
            source=self.source,
            operator=operator,
            strategy=self.kept[0],
            parents=tuple(parents),
            decisions=tuple(self._decisions),
            steps=tuple(self._steps),
            probes=self._probes,
            wall_s=time.monotonic() - self._started,
        )

    def failure(self, operator: str, reason: str) -> OperatorFailed:
        """The exception to raise when nothing was kept, with what it cost."""
        return OperatorFailed(reason, operator=operator, decisions=tuple(self._decisions), steps=tuple(self._steps))

    def _note(self, decision: Decision, step: Step) -> None:
        self._decisions.append(decision)
        self._steps.append(step)

    def _carry_out(self, strategy: Strategy) -> tuple[Source | None, str]:
        """The new source, or None and the reason."""
        try:
            text = self._coder.implement(self.source, strategy, self._brief.task, self._rng)
        except OperatorFailed as failure:
            return None, failure.reason
        source = Source(text, self.source.language)
        if source.sha256 in self._known:
            return None, f"that is candidate {self._known[source.sha256]} again"
        if self._probe is not None:
            self._probes += 1
            evaluation = self._probe(source)
            if not evaluation.passed:
                return None, f"{evaluation.status}: {evaluation.reason}"
        return source, ""


def kept_strategies(proposal: Proposal) -> tuple[Strategy, ...]:
    """Every strategy that is in the proposal's source, oldest first."""
    if len(proposal.decisions) != len(proposal.steps):
        return (proposal.strategy,) if proposal.strategy else ()
    chosen = (
        decision.offered[decision.chosen]
        for decision, step in zip(proposal.decisions, proposal.steps, strict=True)
        if step.outcome == KEPT
    )
    return tuple(strategy for strategy in chosen if strategy.name != "stop")
