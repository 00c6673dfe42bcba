"""Crossover of strategies: what helped another lineage is replayed here, each at the best region offered now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Credit, Decision, Evaluation, Probe, Proposal, ScoredCandidate, Strategy
from operators.macro import catalogue
from operators.macro.policies import untried
from operators.micro.coder import Coder
from operators.micro.steps import StepWalk

FASTER = 0.98  # of the parent's time on a case: less is noise
KEEP = 0.75  # probability that a strategy of the other path is replayed: two crossings of a pair then differ


class CrossoverOperator:
    """Fails at no cost when no inspiration has a strategy that this parent lacks and offers. Thread-safe."""

    name = "crossover"

    def __init__(self, coder: Coder, max_steps: int = 8) -> None:
        """`max_steps`: strategies taken over at most."""
        self._coder, self._max_steps = coder, max_steps

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        rng = np.random.default_rng(brief.seed)
        for index in rng.permutation(len(brief.inspirations)):
            other = brief.inspirations[index]
            missing = brought(other, brief.parent)
            failed = other.evaluation is not None and not other.evaluation.passed
            if failed or other.candidate == brief.parent.candidate or not missing:
                continue
            walk = StepWalk(brief, self._coder, rng, probe)
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
            if len(walk.kept) >= self._max_steps:
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
