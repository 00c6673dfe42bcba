"""Crossover of two lineages: their strategies are replayed by the coder, or a language model merges two kernels."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

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
from operators.llm.base import Model
from operators.macro import catalogue
from operators.macro.policies import untried
from operators.micro.coder import KEPT, Coder, StepWalk
from operators.micro.session import CoderSession, Opening, SessionLimits
from operators.prompts.evidence import evidence, strategy_line
from operators.prompts.parts import Part, rows, without_middle
from operators.prompts.writer import Prompts, looked_up, score_of, shown, user

FASTER = 0.98  # of the parent's time on a case: less is noise
MAX_STEPS = 8  # strategies taken over at most
KEEP = 0.75  # probability that a strategy of the other path is replayed: two crossings of a pair then differ


class CrossoverOperator:
    """Fails at no cost when no inspiration has a strategy that this parent lacks and offers. Thread-safe."""

    name = "crossover"

    def __init__(self, coder: Coder) -> None:
        self._coder = coder

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        rng = np.random.default_rng(brief.seed)
        for index in rng.permutation(len(brief.inspirations)):
            other = brief.inspirations[index]
            missing = brought(other, brief.parent)
            failed = other.evaluation is not None and not other.evaluation.passed
            if failed or other.candidate == brief.parent.candidate or not missing:
                continue
            walk = StepWalk(brief, self._coder, probe)
            self._replay(walk, brief, missing, rng)
            if walk.kept:
                roles = (("parent", brief.parent.candidate), ("inspiration", other.candidate))
                return walk.proposal(self.name, roles)
        reason = "no strategy of another lineage that this parent lacks could be replayed on it"
        raise OperatorFailed(reason, operator=self.name, exhausted=True)

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return catalogue.witnessed(proposal.strategy, parent, child)

    def learn(self, credit: Credit) -> None:
        """Nothing to learn: the choice was the other lineage's."""

    def _replay(self, walk: StepWalk, brief: Brief, missing: Sequence[Strategy], rng: np.random.Generator) -> None:
        """A random part of the missing strategies; if none of them can be done, the others."""
        wanted = rng.random(len(missing)) < KEEP
        left_out = [strategy for strategy, take in zip(missing, wanted, strict=True) if not take]
        self._take(walk, brief, [strategy for strategy, take in zip(missing, wanted, strict=True) if take])
        if not walk.kept:
            self._take(walk, brief, left_out)

    def _take(self, walk: StepWalk, brief: Brief, wanted: Sequence[Strategy]) -> None:
        for strategy in wanted:
            if len(walk.kept) >= MAX_STEPS:
                return
            offered = walk.offers()
            if not walk.kept:  # the first step alone, tried before, may be all that comes of this
                offered = untried(offered, brief.tried) if len(wanted) == 1 else offered
            chosen = best_match(strategy, offered)
            if chosen is not None:
                chances = tuple(float(index == chosen) for index in range(len(offered)))
                walk.take(Decision(self.name, offered, chances, chosen))


def brought(other: ScoredCandidate, parent: ScoredCandidate) -> list[Strategy]:
    """What the other has to give: what its path has and the parent's lacks, oldest first.

    Of one that is faster on no case only strategies that the parent's path does not have in any form: a sibling that
    took the same step with other parameters, and lost by it, has nothing to give.
    """
    missing = lacking(other.strategies, parent.strategies)
    if faster_somewhere(other, parent):
        return missing
    names = {strategy.name for strategy in parent.strategies}
    return [strategy for strategy in missing if strategy.name not in names]


def faster_somewhere(other: ScoredCandidate, parent: ScoredCandidate) -> bool:
    """Whether some case was timed as surely faster; yes where that cannot be known."""
    if other.evaluation is None or parent.evaluation is None:
        return True
    ours = {one.case: one for one in parent.evaluation.measurements}
    both = [(one, ours[one.case]) for one in other.evaluation.measurements if one.case in ours]
    return not both or any(one.median_us < FASTER * mine.median_us for one, mine in both)


def lacking(theirs: Sequence[Strategy], ours: Sequence[Strategy]) -> list[Strategy]:
    """What is on their path and not on ours, by name and parameters, repeats counted; oldest first."""
    have = Counter((strategy.name, strategy.parameters) for strategy in ours)
    missing = []
    for strategy in theirs:
        if have[strategy.name, strategy.parameters] > 0:
            have[strategy.name, strategy.parameters] -= 1
        else:
            missing.append(strategy)
    return missing


def best_match(strategy: Strategy, offered: Sequence[Strategy]) -> int | None:
    """Index of the offer of that name with the same parameters, if any, and the most similar region."""

    def likeness(index: int) -> tuple[bool, float]:
        offer = offered[index]
        similar = SequenceMatcher(None, offer.region, strategy.region, autojunk=False).ratio()
        return offer.parameters == strategy.parameters, similar

    same = [index for index, offer in enumerate(offered) if offer.name == strategy.name]
    return max(same, key=likeness, default=None)


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

        def opening(text: Source) -> Opening:
            return self.opening(brief, text, other)

        session = CoderSession(self._model, opening, source, probe, self._limits, brief.known_sources)
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
        # The middle goes where smaller functions are not enough: it is read, not edited.
        text = without_middle(shown(other.source.text, budgets.source)[0].rstrip(), budgets.source)
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

        def worth(pair: tuple[ScoredCandidate, list[Strategy]]) -> tuple[bool, float, int]:
            return faster_somewhere(pair[0], brief.parent), score_of(pair[0]), pair[0].candidate

        return max(found, key=worth)
