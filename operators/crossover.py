"""Crossover at the level of strategies: replay on this parent what worked in another lineage.

The donor is an inspiration whose path holds strategies that the parent's path lacks. They are replayed in their order,
each where the coder offers it on the present source; what is no longer offered is left out.
"""

from __future__ import annotations

import time
from collections import Counter

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Credit, Evaluation, Probe, Proposal, Relative, Source, Step, Strategy
from operators.macro.catalogue import witnessed
from operators.micro.coder import Coder


class CrossoverOperator:
    """The Operator that merges two lineages. Thread-safe when its coder is."""

    name = "crossover"

    def __init__(self, coder: Coder, max_steps: int = 6) -> None:
        self._coder, self._max_steps = coder, max_steps

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        del probe
        began = time.monotonic()
        rng = np.random.default_rng(brief.seed)
        donors = [(donor, lacking) for donor in brief.inspirations if (lacking := _lacking(brief.parent, donor))]
        if not donors:
            raise OperatorFailed("no inspiration knows a strategy that this parent lacks", operator=self.name)
        donor, lacking = donors[int(rng.integers(len(donors)))]
        source, kept, steps = self._replay(brief, lacking)
        if not kept:
            reason = f"none of the donor's {len(lacking)} strategies applies to this parent"
            raise OperatorFailed(reason, operator=self.name, steps=tuple(steps))
        return Proposal(
            source=source,
            operator=self.name,
            strategy=kept[0],
            parents=(("parent", brief.parent.candidate), ("donor", donor.candidate)),
            steps=tuple(steps),
            wall_s=time.monotonic() - began,
        )

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        if proposal.strategy is None or parent is None:
            return False
        return witnessed(proposal.strategy.name, parent.features, child.features)

    def learn(self, credit: Credit) -> None:
        del credit

    def _replay(self, brief: Brief, wanted: list[Strategy]) -> tuple[Source, list[Strategy], list[Step]]:
        source, kept, steps = brief.parent.source, [], []
        for strategy in wanted[: self._max_steps]:
            place = _place(strategy, self._coder.offer(source, brief.task))
            if place is None:
                steps.append(Step(strategy.key, "rolled back", "not offered on this source"))
                continue
            try:
                source = self._coder.implement(source, place, brief.task)
            except OperatorFailed as failure:
                steps.append(Step(place.key, "rolled back", failure.reason))
                continue
            kept.append(place)
            steps.append(Step(place.key, "kept"))
        return source, kept, steps


def _lacking(parent: Relative, donor: Relative) -> list[Strategy]:
    """The donor's strategies beyond those of the parent, by name and count, in the donor's order."""
    own = Counter(strategy.name for strategy in parent.strategies)
    lacking = []
    for strategy in donor.strategies:
        if own[strategy.name] > 0:
            own[strategy.name] -= 1
        else:
            lacking.append(strategy)
    return lacking


def _place(strategy: Strategy, offered: tuple[Strategy, ...]) -> Strategy | None:
    """The same strategy on the present source: the same region if it is offered, else the first one of that name."""
    same = [other for other in offered if other.name == strategy.name]
    exact = [other for other in same if other.region == strategy.region and other.parameters == strategy.parameters]
    return (exact or same or [None])[0]
