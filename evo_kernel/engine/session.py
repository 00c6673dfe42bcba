"""What the threads of a run share: settings, observer, the judge that is asked again, counts, when it stops."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from evo_kernel.budget import Ledger, Spent
from evo_kernel.deadline import Deadline
from evo_kernel.engine.stagnation import Stagnation
from evo_kernel.engine.time_budget import TimeBudget
from evo_kernel.errors import InfraError, OperatorFailed
from evo_kernel.types import (
    Brief,
    Evaluation,
    Judge,
    Operator,
    Population,
    Purpose,
    Recorded,
    ScoredCandidate,
    Source,
    Status,
)
from evo_kernel.types.promotion import confirmed


class RetryingJudge:
    """A judge whose machine may fail: asked again, then answered for with an infra_error. Thread-safe.

    `aborted`: nothing is asked again any more. `trouble` hears of every failure that is followed by another try.
    """

    def __init__(
        self,
        judge: Judge,
        task_identity: str,
        settings: EngineSettings,
        aborted: threading.Event,
        trouble: Callable[[str], None],
    ) -> None:
        self._judge, self._task, self._settings = judge, task_identity, settings
        self._aborted, self._trouble = aborted, trouble

    def judge(
        self,
        recorded: Recorded,
        purpose: Purpose = Purpose.SCORE,
        scored: ScoredCandidate | None = None,
        remeasure: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        """The verdict on a durable candidate; an infra_error when the machine failed on every try. Raises CutShort.

        `scored`: the candidate with the knobs that it is to keep; None where the judge may tune it.
        """
        proposed = recorded.proposal.source
        source = scored.source if scored is not None else proposed
        evaluation = confirmed(
            self._evaluate(source, purpose, remeasure, against, deadline or Deadline(), effort), recorded.candidate
        )
        if scored is not None and scored.knobs:  # the verdict on a setting of this candidate, not on another source
            evaluation = replace(evaluation, source=proposed.sha256, knobs=scored.knobs)
        return evaluation

    def _evaluate(
        self, source: Source, purpose: Purpose, remeasure: bool, against: Source | None, deadline: Deadline, effort: int
    ) -> Evaluation:
        left = self._settings.infra_retries
        while True:
            try:
                return self._judge.evaluate(source, purpose, remeasure, against, deadline, effort)
            except InfraError as error:
                if left == 0 or self._aborted.is_set() or deadline.over:
                    reason, where = str(error) or "the machine failed and gave no reason", self._judge.environment
                    return Evaluation(source.sha256, self._task, purpose, where, Status.INFRA_ERROR, reason)
                self._trouble(f"the machine failed, {left} more tries: {error}")
                left -= 1
                self._aborted.wait(self._settings.infra_wait_s)


class Probing:
    """The judge as an operator at work sees it. Keeps account of what was charged."""

    def __init__(self, judge: Judge, deadline: Deadline) -> None:
        self._judge, self._deadline, self.spent = judge, deadline, Spent()

    def __call__(self, source: Source) -> Evaluation:
        evaluation = self._judge.evaluate(source, Purpose.PROBE, deadline=self._deadline)
        self.spent += Spent.of(None, evaluation)
        return evaluation


class Observer(Protocol):
    """Hears what happens, one call at a time, from many threads. Must be quick and must not raise."""

    def attempt_started(self, brief: Brief) -> None:
        pass

    def operator_failed(self, brief: Brief, failure: OperatorFailed) -> None:
        pass

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None:
        pass

    def confirming(self, candidate: int, expected_s: float) -> None:
        """A candidate is about to be confirmed, which is likely to take so long."""

    def trouble(self, message: str) -> None:
        pass


class Silence(Observer):
    """An observer that hears nothing."""


@dataclass(frozen=True)
class EngineSettings:
    """How the loop runs, and when it gives up."""

    width: int = 1  # attempts in flight
    barren: int = 200  # so many attempts in a row that cost nothing end the run: there is nothing new left to try
    infra_retries: int = 2  # further tries of an evaluation that the machine failed, beyond the judge's own
    infra_wait_s: float = 2.0  # before each of them
    infra_stop: int = 3  # so many evaluations or attempts in a row that the machine failed end the run
    interrupt_s: float = 10.0  # verdicts under way have so long when somebody interrupts
    remeasured: float = 0.2  # of judged candidates: share that may be measured again where noise leaves order open
    confirmations: int = 5  # candidates tried on the hidden cases at the end, best first, until one stands


class RunSession:
    """One run over one population. `stop` and `abort` from a thread or signal handler."""

    def __init__(
        self,
        population: Population,
        operator: Operator,
        judge: Judge,
        ledger: Ledger,
        settings: EngineSettings | None,
        observer: Observer | None,
    ) -> None:
        self.population, self.operator, self.judge, self.ledger = population, operator, judge, ledger
        self.settings, self.observer = settings or EngineSettings(), observer or Silence()
        self.hours = TimeBudget(ledger.left_s, population.confirmation_s(), ledger.clock)
        self.deadline = Deadline(clock=ledger.clock)
        self.lock = threading.RLock()  # guards the counts below; verdicts and lessons are taken in one order
        self.statuses: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.best_log_us = math.inf
        self._infra = 0
        self.why = self.cause = ""
        self.interrupted = False
        self.stopped, self.aborted = threading.Event(), threading.Event()
        self.news = Stagnation(self.settings.barren, self.stopped)
        self._steady = RetryingJudge(judge, population.task_identity, self.settings, self.aborted, self._trouble)

    def stop(self, why: str, cause: str = "interrupted") -> None:
        """Start nothing new; what is in flight finishes, where somebody interrupts within `interrupt_s`. The first
        reason given is the one reported."""
        if cause == "interrupted":
            self.interrupted = True
            self.deadline.bring_forward(self.settings.interrupt_s)
        if not self.stopped.is_set():
            self.pause(why, cause)
            # In a thread of its own: a signal may arrive while its own thread holds the ledger's lock.
            threading.Thread(target=self.ledger.close, daemon=True).start()

    def pause(self, why: str, cause: str) -> None:
        """As `stop`, but `go_on` may follow."""
        self.why, self.cause = why, cause
        self.stopped.set()

    def go_on(self) -> bool:
        """End a pause; False where somebody interrupted meanwhile."""
        self.stopped.clear()
        if self.interrupted:  # between the lines, or before
            self.stopped.set()
        return not self.interrupted

    def abort(self, why: str) -> None:
        """Stop, and wait for nothing. The caller closes the judge, which ends its children."""
        self.stop(why)
        self.aborted.set()

    def enter(self, deadline: Deadline) -> None:
        """From here on this one holds."""
        self.deadline = deadline
        if self.interrupted:  # between the two lines, or before
            deadline.bring_forward(self.settings.interrupt_s)

    def judge_and_tell(
        self,
        recorded: Recorded,
        purpose: Purpose,
        scored: ScoredCandidate | None = None,
        remeasure: bool = False,
        against: Source | None = None,
        new: bool | None = None,
        effort: int = 1,
    ) -> Spent:
        """`scored`: the candidate with the knobs that it is to keep; None where the judge may tune it.

        `new`: whether the candidate's score is its first in this run; what is measured anew is not, if left out.
        """
        new = (purpose is Purpose.SCORE and not remeasure) if new is None else new
        began = self.ledger.clock()
        evaluation = self._steady.judge(recorded, purpose, scored, remeasure, against, self.deadline, effort)
        timed = evaluation.status in (Status.PASSED, Status.REFUTED)
        if timed and (evaluation.charged or purpose is Purpose.CONFIRM):
            self.hours.took(self.ledger.clock() - began, confirming=purpose is Purpose.CONFIRM)
        if self.aborted.is_set() and not evaluation.passed:  # cut off by us: no verdict, it stays pending
            return Spent.of(None, evaluation)
        parent = recorded.brief.parent.evaluation
        witnessed = evaluation.passed and self.operator.witnessed(recorded.proposal, parent, evaluation)
        with self.lock:
            for credit in self.population.tell(recorded, evaluation, witnessed):
                self.operator.learn(credit)
            counts = new or (purpose is Purpose.SCORE and not remeasure)
            is_best = counts and evaluation.standing < self.best_log_us
            if is_best:
                self.best_log_us = evaluation.standing
            if new:
                self.statuses[str(evaluation.status)] += 1
            self.count_infra(evaluation.reason if evaluation.status is Status.INFRA_ERROR else "")
            self.observer.judged(recorded, evaluation, is_best)
        return Spent.of(None, evaluation)

    def count_infra(self, reason: str) -> None:
        """`reason`: what the machine failed at; empty where it did its work."""
        self._infra = self._infra + 1 if reason else 0
        if self._infra >= self.settings.infra_stop:
            self.stop(f"the machine failed {self._infra} times in a row: {reason}", "machine")

    def _trouble(self, message: str) -> None:
        with self.lock:
            self.observer.trouble(message)
