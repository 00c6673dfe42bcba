"""The loop: ask → propose → record → judge → tell → learn, `width` attempts in flight.

Four kinds of failure have four fates: the kernel's is a Status in its Evaluation; the agent's (OperatorFailed) is
recorded with what it cost, and the search goes on; the machine's (InfraError) is retried, then ends the run with the
candidate still pending, never scored; ours raises. With `width = 1` and a seed a run is deterministic.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Protocol

from evo_kernel.budget import Ledger, Spent
from evo_kernel.errors import InfraError, OperatorFailed
from evo_kernel.types import (
    Brief,
    Evaluation,
    Judge,
    Operator,
    Population,
    Proposal,
    Purpose,
    Recorded,
    Relative,
    Source,
)


class Observer(Protocol):
    """Hears what happens, from many threads at once. Must be quick and must not raise."""

    def attempt_started(self, brief: Brief) -> None: ...

    def proposed(self, brief: Brief, proposal: Proposal) -> None: ...

    def operator_failed(self, brief: Brief, failure: OperatorFailed) -> None: ...

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None: ...


class Silence:
    """An observer that hears nothing."""

    def attempt_started(self, brief: Brief) -> None:
        del brief

    def proposed(self, brief: Brief, proposal: Proposal) -> None:
        del brief, proposal

    def operator_failed(self, brief: Brief, failure: OperatorFailed) -> None:
        del brief, failure

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None:
        del recorded, evaluation, is_best


@dataclass(frozen=True)
class EngineSettings:
    """How the loop runs."""

    width: int = 1  # attempts in flight
    barren: int = 200  # so many attempts in a row without a proposal end the run: there is nothing left to try


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    why: str
    attempts: int
    wall_s: float
    spent: Spent
    best: Relative | None


class Engine:
    """One run over one population. `run` may be called once; `stop` from any thread or a signal handler."""

    def __init__(
        self,
        population: Population,
        operator: Operator,
        judge: Judge,
        ledger: Ledger,
        settings: EngineSettings | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._population, self._operator, self._judge, self._ledger = population, operator, judge, ledger
        self._settings, self._observer = settings or EngineSettings(), observer or Silence()
        self._lock = threading.Lock()
        self._attempts = self._barren = 0
        self._best_score: float | None = None
        self._why = ""
        self._error: BaseException | None = None

    def stop(self, why: str) -> None:
        """Start nothing new; what is in flight finishes. The first reason given is the one reported."""
        self._why = self._why or why

    def run(self) -> Summary:
        """Rebuild what operators have learnt, judge what is pending, then search until something says stop."""
        began = time.monotonic()
        for credit in self._population.credits():
            self._operator.learn(credit)
        best = self._population.best()
        self._best_score = best.evaluation.score if best is not None and best.evaluation is not None else None
        self._guarded(self._judge_pending)
        threads = [
            threading.Thread(target=self._guarded, args=(self._attempts_until_stopped,), name=f"attempt-{number}")
            for number in range(self._settings.width)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # in slices, so that signals reach the main thread
                thread.join(0.2)
        if self._error is not None:
            raise self._error
        spent = self._ledger.spent()
        return Summary(self._why, self._attempts, time.monotonic() - began, spent, self._population.best())

    def _guarded(self, work: object) -> None:
        """Run a thread's work; whatever it raises ends the run and is raised again by `run`."""
        try:
            work()  # type: ignore[operator]
        # Not handled here: carried to the thread that called `run`.
        except BaseException as error:  # noqa: BLE001
            with self._lock:
                self._error = self._error or error
            self.stop(f"{type(error).__name__}: {error}")

    def _judge_pending(self) -> None:
        for recorded in self._population.pending():
            if self._why:
                return
            evaluation = self._judge.evaluate(recorded.proposal.source, Purpose.SCORE)
            self._ledger.charge(evaluation)
            self._tell(recorded, evaluation)

    def _attempts_until_stopped(self) -> None:
        while not self._why:
            reached = self._ledger.reserve()
            if reached:
                self.stop(reached)
                return
            self._attempt()

    def _attempt(self) -> None:
        with self._lock:
            self._attempts += 1
        brief = self._population.ask()
        self._observer.attempt_started(brief)
        proposal: Proposal | None = None
        evaluation: Evaluation | None = None
        try:
            proposal = self._propose(brief)
            if proposal is not None:
                self._observer.proposed(brief, proposal)
                recorded = self._population.record(brief, proposal)
                evaluation = self._judge.evaluate(proposal.source, Purpose.SCORE)
                self._tell(recorded, evaluation)
        finally:
            self._ledger.settle(proposal, evaluation)

    def _propose(self, brief: Brief) -> Proposal | None:
        try:
            proposal = self._operator.propose(brief, self._probe)
        except OperatorFailed as failure:
            cost = Proposal(
                brief.parent.source,
                failure.operator or self._operator.name,
                decisions=failure.decisions,
                steps=failure.steps,
                calls=failure.calls,
            )
            self._population.fail(brief, cost.operator, failure.reason, cost)
            self._observer.operator_failed(brief, failure)
            with self._lock:
                self._barren += 1
                if self._barren >= self._settings.barren:
                    self.stop(
                        f"{self._barren} attempts in a row had nothing to propose; the last said: {failure.reason}"
                    )
            return None
        with self._lock:
            self._barren = 0
        return proposal

    def _probe(self, source: Source) -> Evaluation:
        evaluation = self._judge.evaluate(source, Purpose.PROBE)
        self._ledger.charge(evaluation)
        return evaluation

    def _tell(self, recorded: Recorded, evaluation: Evaluation) -> None:
        parent = recorded.brief.parent.evaluation
        proposal = recorded.proposal
        witnessed = evaluation.passed and self._operator.witnessed(proposal, parent, evaluation)
        credits = self._population.tell(recorded, evaluation, witnessed)
        for credit in credits:
            self._operator.learn(credit)
        with self._lock:
            score = evaluation.score
            is_best = score is not None and (self._best_score is None or score > self._best_score)
            if is_best:
                self._best_score = score
        self._observer.judged(recorded, evaluation, is_best)


__all__ = ["Engine", "EngineSettings", "InfraError", "Observer", "Silence", "Summary"]
