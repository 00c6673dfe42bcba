"""Crossover by a language model: it reads two kernels with their evidence and merges what is orthogonal into one."""

from __future__ import annotations

import dataclasses
import time

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import (
    Brief,
    Credit,
    Decision,
    Evaluation,
    Probe,
    Proposal,
    ScoredCandidate,
    Source,
    Step,
    Strategy,
)
from operators.crossover import brought, faster_somewhere
from operators.llm.base import Model
from operators.macro import catalogue
from operators.micro.session import CoderSession, Opening, SessionLimits
from operators.micro.steps import KEPT
from operators.prompts.evidence import evidence, strategy_line
from operators.prompts.parts import Part, rows, without_middle
from operators.prompts.relatives import shown
from operators.prompts.writer import Prompts, looked_up, user

ROLES = ("answer", "crossover")


class LlmCrossover:
    """Fails at no cost when no inspiration has passed and holds a strategy that the parent lacks. Thread-safe."""

    name = "llm-crossover"

    def __init__(self, model: Model, prompts: Prompts | None = None, limits: SessionLimits | None = None) -> None:
        self._model, self._prompts, self._limits = model, prompts or Prompts(), limits or SessionLimits()

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        started = time.monotonic()
        other, missing = self._other(brief)
        source, claimed = brief.parent.source, missing[0]
        chances = (1.0, *(0.0 for _ in missing[1:]))
        decisions = (Decision(self.name, tuple(missing), chances, 0),)
        session = CoderSession(
            self._model,
            lambda text: self.opening(brief, text, other),
            source,
            probe,
            self._limits,
            brief.known_sources,
        )
        try:
            coded = session.work()
        except OperatorFailed as failure:
            failure.operator, failure.decisions = self.name, decisions
            raise
        took = time.monotonic() - started
        return Proposal(
            source=Source(coded.text, source.language),
            operator=self.name,
            strategy=claimed,
            parents=(("parent", brief.parent.candidate), ("inspiration", other.candidate)),
            decisions=decisions,
            steps=(*coded.steps, Step(claimed.key, KEPT, "", took)),
            calls=coded.calls,
            probes=coded.probes,
            wall_s=took,
        )

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return catalogue.witnessed(proposal.strategy, parent, child)

    def learn(self, credit: Credit) -> None:
        """Nothing to learn: the choice was the other lineage's."""

    def opening(self, brief: Brief, source: Source, other: ScoredCandidate) -> Opening:
        """The prompt: B whole with its evidence, then the situation of A."""
        prompts, budgets = self._prompts, self._prompts.budgets
        missing = [f"- {strategy_line(s)}" for s in brought(other, brief.parent)]
        evidence_of_b = evidence(other.evaluation, budgets.evidence)
        others = tuple(relative for relative in brief.inspirations if relative.candidate != other.candidate)
        alone = dataclasses.replace(brief, inspirations=others)  # B is shown whole below
        text = _cut(other, budgets.source)
        parts = [
            Part(f"Source of B (candidate {other.candidate})", f"```python\n{text}\n```"),
            Part("Evidence of B", evidence_of_b),
            Part("Strategies of B that A (the parent) lacks", rows((), missing, budgets.tried)),
            *prompts.situation(alone, source, query=looked_up(brief)),
        ]
        messages = (prompts.system(brief.task, brief.environment, *ROLES), user(parts))
        return Opening(messages, shown(source.text, prompts.budgets.source)[1])

    def _other(self, brief: Brief) -> tuple[ScoredCandidate, list[Strategy]]:
        found = [
            (relative, missing)
            for relative in brief.inspirations
            if relative.candidate != brief.parent.candidate and relative.evaluation and relative.evaluation.passed
            if (missing := brought(relative, brief.parent))
        ]
        if not found:
            reason = "no inspiration that passed has a strategy that this parent lacks"
            raise OperatorFailed(reason, operator=self.name, exhausted=True)
        return max(
            found, key=lambda pair: (faster_somewhere(pair[0], brief.parent), _score(pair[0]), pair[0].candidate)
        )


def _cut(relative: ScoredCandidate, budget: int) -> str:
    """Its source within the budget; the middle goes where smaller functions are not enough: it is read, not edited."""
    return without_middle(shown(relative.source.text, budget)[0].rstrip(), budget)


def _score(relative: ScoredCandidate) -> float:
    return (relative.evaluation.score if relative.evaluation else None) or 0.0
