"""What the threads of a run share: its parts, its counts, when it stops, and how a verdict is taken in."""

from __future__ import annotations

import math
import threading
from collections import Counter

from evo_kernel.budget import Ledger, Spent
from evo_kernel.deadline import Deadline
from evo_kernel.engine.observer import Observer, Silence
from evo_kernel.engine.retrying_judge import RetryingJudge
from evo_kernel.engine.settings import EngineSettings
from evo_kernel.engine.stagnation import Stagnation
from evo_kernel.engine.time_budget import TimeBudget
from evo_kernel.types import Judge, Operator, Population, Purpose, Recorded, ScoredCandidate, Source, Status


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
