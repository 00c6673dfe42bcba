"""One attempt: a brief, an operator's proposal, and its verdict."""

from __future__ import annotations

import time
import traceback
from dataclasses import replace

from evo_kernel.budget import Spent
from evo_kernel.engine.session import Probing, RunSession
from evo_kernel.errors import EvoKernelError, InfraError, OperatorFailed
from evo_kernel.types import Brief, Proposal, Purpose

TWINS = 8
"""So often in a row an attempt is begun anew because another is having the same kernel judged."""
BUGS = 10
"""So many attempts in a row that a bug in an operator ended, end the run: it is not this or that parent."""


class Attempts:
    """Thread-safe."""

    def __init__(self, session: RunSession) -> None:
        self._session = session
        self.asked = 0
        self._bugs = 0
        self._judged_now: set[tuple[int, str]] = set()  # (parent, source) of new candidates that are with the judge

    def make(self) -> Spent:
        """One attempt; what it cost."""
        session = self._session
        apart, cost, counted = session.ledger.charged_apart, None, None
        session.news.begun()
        try:
            cost = self._made_and_judged()
            if cost is not None:
                counted = cost + Spent(evaluations=session.ledger.charged_apart - apart)  # agents book their own
        finally:
            barren = session.news.finished(counted)
        if barren:
            with session.lock:
                common = session.failures.most_common(1)
            said = f"; operators said most often: {common[0][0]}" if common else ""
            session.stop(f"{barren} attempts in a row found nothing new to try{said}", "barren")
        return cost or Spent()

    def _made_and_judged(self, twins: int = 0) -> Spent | None:
        """What it cost; None where its parent was found to have nothing left to try. `twins`: how often in a row it was
        begun to no avail."""
        session = self._session
        brief = session.population.ask()
        with session.lock:
            self.asked += 1
            session.observer.attempt_started(brief)
        proposal, failed, cost = self._proposed(brief)
        if failed is not None:
            return self._failed(brief, proposal, failed, cost)
        with session.lock:
            child = (brief.parent.candidate, proposal.source.sha256)
            twin = child in self._judged_now
            self._judged_now.add(child)
        if twin and not proposal.calls and twins < TWINS:
            # Both were asked before either was recorded. The next brief knows what the other tries.
            reason = "another attempt is having the same kernel judged"
            session.population.fail(brief, proposal.operator, reason, proposal)
            with session.lock:
                session.observer.operator_failed(brief, OperatorFailed(reason, operator=proposal.operator))
            return cost + (self._made_and_judged(twins + 1) or Spent())
        try:
            recorded = session.population.record(brief, proposal)
            with session.news.at("judging"):
                return cost + session.judge_and_tell(recorded, Purpose.SCORE)
        finally:
            with session.lock:
                self._judged_now.discard(child)

    def _proposed(self, brief: Brief) -> tuple[Proposal, OperatorFailed | None, Spent]:
        """What an operator makes of a brief, or how it failed; with what either cost."""
        session = self._session
        probe, began, bugs = Probing(session.judge, session.deadline), time.monotonic(), 0
        try:
            proposal, failed = session.operator.propose(brief, probe), None
        except OperatorFailed as failure:
            proposal, failed = _costs_of(failure, brief, session.operator.name), failure
        except InfraError as error:  # where an operator was at work: a probe, a workspace
            if session.aborted.is_set():
                raise
            failed = OperatorFailed(f"the machine failed: {error}", operator=error.operator)
            failed.__cause__ = error  # as `raise … from` would have it
            proposal = _costs_of(failed, brief, session.operator.name)
        except EvoKernelError:
            raise
        except Exception as error:  # a bug that this parent met: the others are still wanted
            bugs = self._bugs + 1
            if bugs >= BUGS or session.aborted.is_set():
                raise
            with session.lock:
                session.observer.trouble("".join(traceback.format_exception(error, limit=-4)))
            failed = OperatorFailed(f"a bug of the operator: {type(error).__name__}: {error}"[:500])
            proposal = _costs_of(failed, brief, session.operator.name)
        with session.lock:
            self._bugs = bugs
        proposal = replace(proposal, probes=probe.spent.evaluations, wall_s=time.monotonic() - began)
        return proposal, failed, probe.spent + Spent.of(proposal)

    def _failed(self, brief: Brief, proposal: Proposal, failed: OperatorFailed, cost: Spent) -> Spent | None:
        session, machines = self._session, isinstance(failed.__cause__, InfraError)
        if not failed.paused:  # else nothing to record: what it has cost is with its turns
            session.population.fail(brief, proposal.operator, failed.reason, proposal, failed.exhausted)
        with session.lock:
            session.observer.operator_failed(brief, failed)
            if failed.paused:
                return cost
            session.failures[failed.reason] += 1
            if machines:
                session.count_infra(failed.reason)
        session.aborted.wait(session.settings.infra_wait_s if machines else 0.0)
        return None if failed.exhausted and cost == Spent() else cost


def _costs_of(failure: OperatorFailed, brief: Brief, operator: str) -> Proposal:
    """A failed attempt as the proposal that it did not make: only its costs and its trail count."""
    return Proposal(
        brief.parent.source, failure.operator or operator,
        decisions=failure.decisions, steps=failure.steps, calls=failure.calls,
    )  # fmt: skip
