"""Macro thinking, micro coding: a policy decides what to change, a coder changes it.

By default one step a proposal, and no probe: the judge looks anyway, and a lineage of single steps tells a policy most.
Fusions go first, all that are expected to pay: a buffer gone seldom harms, and rewriting costs less than a verdict.
Where a child of the parent has them already, another step follows.
A coder that works with a language model probes its own edits, and a policy that asks one spends calls; both end in the
proposal. With `max_steps` above 1 the number of steps is drawn (each further one with probability 1/2), the policy may
choose `stop` from the second on, and the proposal claims its *first* strategy; the rest is in its decisions and steps.
Credit then goes to the first, for all of them: it made the others possible.
"""

from __future__ import annotations

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Credit, Decision, Evaluation, Probe, Proposal, Status, Tried
from operators.macro import catalogue
from operators.macro.features import MacroState
from operators.macro.policies import Policy, untried
from operators.micro.coder import Coder, StepWalk
from operators.micro.host_code import fused_through, fusion_gains

GO_ON = 0.5  # probability of one more step, up to max_steps
FUSE_FIRST = 0.9  # probability that fusions go first,
FUSE_ON = 0.98  # and of one more after one
TRIES = 4  # strategies that may fail in the coder's hands before the attempt is given up


class MtmcOperator:
    """Thread-safe. `name`: two of these in one mix, say one with a model and one without, need two names."""

    def __init__(self, policy: Policy, coder: Coder, max_steps: int = 1, name: str = "mtmc") -> None:
        self.name, self._policy, self._coder, self._max_steps = name, policy, coder, max_steps

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        rng = np.random.default_rng(brief.seed)
        walk = StepWalk(brief, self._coder, probe)
        wanted = min(int(rng.geometric(1.0 - GO_ON)), self._max_steps)
        tries = least = 0
        if not self._coder.free and rng.random() < FUSE_FIRST:
            again = self._fused(brief, walk, rng)
            least = len(walk.kept) + 1 if again else 0
            wanted += max(len(walk.kept) - 1 + again, 0)
        while len(walk.kept) < wanted and tries < TRIES:
            moved = self._step(brief, walk, rng, len(walk.kept) >= least)
            if moved is None:
                break
            tries = 0 if moved else tries + 1
        known = brief.known_sources.get(walk.source.sha256)
        if not walk.kept or known:
            reason = f"that is candidate {known} again" if walk.kept else "no strategy applies to this parent"
            if tries:
                reason = f"{tries} strategies could not be carried out on this parent"
            elif not walk.kept and walk.offers():
                reason = "everything offered was tried on this parent"
            failure = walk.failure(self.name, reason)
            failure.exhausted = not tries and not walk.kept
            raise failure
        return walk.proposal(self.name)

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return catalogue.witnessed(proposal.strategy, parent, child)

    def learn(self, credit: Credit) -> None:
        self._policy.learn(credit)

    def _step(self, brief: Brief, walk: StepWalk, rng: np.random.Generator, may_stop: bool) -> bool | None:
        """Whether a step was kept; None when there is nothing to do, or the policy stops."""
        offered = walk.offers()
        if not walk.kept:  # an exact repeat would make the same child again; after another step it would not
            offered = untried(offered, brief.tried, self._coder.tries)
        if not offered:
            return None
        parent = None if walk.kept else brief.parent.evaluation  # times are of the parent's own source
        gains = fusion_gains(walk.source, brief.task, parent, offered)
        if walk.kept and may_stop:
            offered = (*offered, catalogue.STOP)
        state = MacroState(
            brief.task, brief.parent, walk.source, brief.tried, len(walk.kept), brief, self._coder.free, walk.trail(),
            catalogue.usual_gains(offered) | gains,
        )  # fmt: skip
        try:
            decision = self._policy.choose(state, offered, rng)
        except OperatorFailed as failure:
            if walk.kept:
                return None  # what stands by now is worth judging
            whole = walk.failure(self.name, failure.reason)
            whole.calls += failure.calls
            raise whole from None
        if decision.offered[decision.chosen] == catalogue.STOP:
            walk.stop(decision)
            return None
        return walk.take(decision)

    def _fused(self, brief: Brief, walk: StepWalk, rng: np.random.Generator) -> bool:
        """Carry out the fusions that are expected to pay, the largest gain first; whether a child has them already."""
        tried = {fused_through(entry.strategy): entry for entry in brief.tried if entry.strategy.family == "fusion"}
        harmful = {through for through, entry in tried.items() if _harmed(entry)}
        while not walk.kept or rng.random() < FUSE_ON:
            gains = fusion_gains(walk.source, brief.task, brief.parent.evaluation, walk.offers())
            offered = tuple(
                one for one in walk.offers() if gains.get(one.key, 0.0) > 0.0 and fused_through(one) not in harmful
            )
            if not offered:
                break
            best = max(range(len(offered)), key=lambda at: gains[offered[at].key])
            chances = tuple(float(at == best) for at in range(len(offered)))
            walk.take(Decision("fusions first", offered, chances, best), passing=True)
        return bool(tried.keys() - harmful)


def _harmed(entry: Tried) -> bool:
    return entry.status is not None and (entry.status is not Status.PASSED or (entry.log_gain or 0.0) < 0.0)
