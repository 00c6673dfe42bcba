"""The search loop: attempts in threads, confirmation, and when to stop. The package says what becomes of failures."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from evo_kernel.budget import Ledger, Spent
from evo_kernel.deadline import Deadline
from evo_kernel.engine.observer import Observer, Silence
from evo_kernel.engine.retrying_judge import Probing, RetryingJudge
from evo_kernel.engine.settings import EngineSettings
from evo_kernel.engine.stagnation import Stagnation
from evo_kernel.engine.time_budget import TimeBudget
from evo_kernel.errors import CutShort, InfraError, OperatorFailed
from evo_kernel.types import (
    Brief,
    Judge,
    Operator,
    Population,
    Proposal,
    Purpose,
    Recorded,
    ScoredCandidate,
    Source,
    Status,
)
from evo_kernel.types.promotion import FIRST

TWINS = 8
"""So often in a row an attempt is begun anew because another is having the same kernel judged."""
DEEPER = 4
"""So many times as many knob settings as usual are tried of elites when nothing new is left to try."""


@dataclass(frozen=True)
class RunSummary:
    """How a run ended."""

    why: str
    cause: str  # "budget" | "barren" | "interrupted" | "machine"
    attempts: int
    statuses: Mapping[str, int]  # candidates judged in this run, by status
    failures: Mapping[str, int]  # what operators said when they failed, most frequent first
    wall_s: float
    spent: Spent  # all sessions together
    best: ScoredCandidate | None = field(repr=False)
    confirming_s: float = 0.0  # of `wall_s`
    out_of_time: bool = False  # the hours that were asked for ended the search
    unconfirmed: bool = False  # a confirmation did not fit into the time: `resume` does it first


class Engine:
    """One run over one population. `run` may be called once; `stop` and `abort` from a thread or signal handler."""

    def __init__(
        self,
        population: Population,
        operator: Operator,
        judge: Judge,
        ledger: Ledger,
        settings: EngineSettings | None = None,
        observer: Observer | None = None,
        time_is_up: Callable[[], None] | None = None,
    ) -> None:
        """`time_is_up` ends what operators wait for."""
        self._population, self._operator, self._judge, self._ledger = population, operator, judge, ledger
        self._settings, self._observer = settings or EngineSettings(), observer or Silence()
        self._time_is_up = time_is_up or (lambda: None)
        self._hours = TimeBudget(ledger.left_s, population.confirmation_s(), ledger.clock)
        self._deadline, self._confirming_s = Deadline(clock=ledger.clock), 0.0
        self._lock = threading.RLock()  # guards the counts below; verdicts and lessons are taken in one order
        self._begun = self._attempts = self._infra = self._remeasured = 0
        self._deepened: set[int] = set()  # elites that were tuned deeper
        self._settled: set[int] = set()  # elites that were measured again, at the end
        self._measuring: set[int] = set()  # candidates that are being measured again
        self._untuned: deque[Recorded] = deque()  # first kernels that are tuned beside the first attempts
        self._judged_now: set[tuple[int, str]] = set()  # (parent, source) of new candidates that are with the judge
        self._statuses: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._best_score = 0.0
        self._why = self._cause = ""
        self._interrupted = self._searching = self._out_of_time = False
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._stopped, self._aborted = threading.Event(), threading.Event()
        self._news = Stagnation(self._settings.barren, self._stopped)
        self._steady = RetryingJudge(judge, population.task_identity, self._settings, self._aborted, self._trouble)

    def stop(self, why: str, cause: str = "interrupted") -> None:
        """Start nothing new; what is in flight finishes, where somebody interrupts within `interrupt_s`. The first
        reason given is the one reported."""
        if cause == "interrupted":
            self._interrupted = True
            self._deadline.bring_forward(self._settings.interrupt_s)
        if not self._stopped.is_set():
            self._why, self._cause = why, cause
            self._stopped.set()
            # In a thread of its own: a signal may arrive while its own thread holds the ledger's lock.
            threading.Thread(target=self._ledger.close, daemon=True).start()

    def abort(self, why: str) -> None:
        """Stop, and wait for nothing. The caller closes the judge, which ends its children."""
        self.stop(why)
        self._aborted.set()

    def run(self) -> RunSummary:
        """Rebuild what operators have learnt, confirm what an earlier session left, judge what is pending, search until
        something says stop, confirm."""
        began = time.monotonic()
        for credit in self._population.credits():
            self._operator.learn(credit)
        best = self._population.best()
        self._best_score = (best.evaluation.score or 0.0) if best and best.evaluation else 0.0
        pending = self._population.pending()
        if self._settings.width > 1:
            self._untuned.extend(pending if best is None else self._population.untuned())
        left = iter(pending)
        if self._population.confirmation_due():
            # Whatever the time: somebody asked for it by going on.
            self._in_threads(1, lambda: self._confirm(bounded=False))
        self._searching = True
        self._enter(self._hours.search)
        self._in_threads(self._settings.width, lambda: self._judge_pending(left))
        self._in_threads(self._settings.width, self._attempts_until_stopped)
        self._searching = False
        if self._cause in ("budget", "barren") and not self._interrupted:
            self._population.note_confirmation(due=True)
            self._enter(self._hours.of_confirmation())
            self._in_threads(1, self._confirm)
        if self._error is not None:
            raise self._error
        if any(thread.is_alive() for thread in self._threads):
            self._aborted.set()  # whoever is late has no file to write to
            self._judge.close()
        due = self._population.confirmation_due()
        return RunSummary(
            self._why, "interrupted" if self._interrupted and due else self._cause, self._attempts,
            dict(self._statuses), dict(self._failures.most_common()), time.monotonic() - began, self._ledger.spent(),
            self._population.best(), self._confirming_s, self._out_of_time, due,
        )  # fmt: skip

    # ---- threads ---------------------------------------------------------------------------------------------------

    def _enter(self, deadline: Deadline) -> None:
        """From here on this one holds."""
        self._deadline = deadline
        if self._interrupted:  # between the two lines, or before
            deadline.bring_forward(self._settings.interrupt_s)

    def _in_threads(self, count: int, work: Callable[[], None]) -> None:
        """Run `work` in threads and wait for them, but not beyond an abort, nor the time that verdicts have."""
        threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        self._threads += threads
        for thread in threads:
            # In slices, so that signals reach this thread.
            while thread.is_alive() and not self._aborted.is_set() and not self._deadline.passed:
                self._end_search_in_time()
                thread.join(0.2)
        self._end_search_in_time()

    def _end_search_in_time(self) -> None:
        if self._searching and self._deadline.over and not self._stopped.is_set():
            kept = f", {self._hours.kept_s:.0f} s of it kept for confirmation" if self._hours.kept_s >= 1 else ""
            self.stop(f"the time that was asked for is spent{kept}", "budget")
            self._out_of_time = True
            self._time_is_up()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a thread's work; whatever it raises ends the run and is raised again by `run`."""
        try:
            with contextlib.suppress(CutShort):  # what has no verdict stays pending
                work()
        # Not handled here: carried to the thread that called `run`.
        except BaseException as error:  # noqa: BLE001
            if not self._aborted.is_set():  # after an abort the judge and the file are gone: no bug of anybody
                with self._lock:
                    self._error = self._error or error
                self.stop(f"{type(error).__name__}: {error}", "bug")

    def _judge_pending(self, pending: Iterator[Recorded]) -> None:
        """What is durable but has no verdict: the first kernels, and what an earlier session had in flight.

        Where there is company, first kernels are measured as they are, so that nobody waits while they are tuned.
        """
        while not self._stopped.is_set():
            with self._lock:
                recorded = next(pending, None)
            if recorded is None:
                return
            untuned = recorded in self._untuned
            self._ledger.charge(self._judge_and_tell(recorded, Purpose.SCORE, anew=untuned, new=True))

    def _tune_first(self) -> None:
        """First kernels once more, with all that a judge does for a kernel."""
        with contextlib.suppress(IndexError):
            while not self._stopped.is_set():
                self._ledger.charge(self._judge_and_tell(self._untuned.popleft(), Purpose.SCORE, new=False))

    def _attempts_until_stopped(self) -> None:
        self._tune_first()
        while not self._stopped.is_set():
            self._end_search_in_time()
            if self._stopped.is_set():
                return
            if self._population.dry():
                self._use_what_is_left()
                continue
            if not self._may_begin():
                return
            reached = self._ledger.reserve()
            if reached:
                self.stop(reached, "budget")
                return
            cost = Spent()
            try:
                cost = self._remeasure() + self._attempt()
            finally:
                self._ledger.settle(cost)

    def _may_begin(self) -> bool:
        """Take one of the attempts that this run may make; the last one taken ends it."""
        limit = self._settings.attempts
        if limit is None:
            return True
        with self._lock:
            if self._begun >= limit:
                self.stop(f"{limit} attempt{'s' * (limit != 1)} made", "budget")
                return False
            self._begun += 1
            return True

    # ---- one attempt -----------------------------------------------------------------------------------------------

    def _attempt(self) -> Spent:
        apart, cost, counted = self._ledger.charged_apart, None, None
        self._news.begun()
        try:
            cost = self._made_and_judged()
            if cost is not None:
                counted = cost + Spent(evaluations=self._ledger.charged_apart - apart)  # agents book their own
        finally:
            barren = self._news.finished(counted)
        if barren:
            with self._lock:
                common = self._failures.most_common(1)
            said = f"; operators said most often: {common[0][0]}" if common else ""
            self.stop(f"{barren} attempts in a row found nothing new to try{said}", "barren")
        return cost or Spent()

    def _made_and_judged(self, twins: int = 0) -> Spent | None:
        """What it cost; None where its parent was found to have nothing left to try. `twins`: how often in a row it was
        begun to no avail."""
        brief = self._population.ask()
        with self._lock:
            self._attempts += 1
            self._observer.attempt_started(brief)
        probe, began = Probing(self._judge, self._deadline), time.monotonic()
        try:
            proposal = self._operator.propose(brief, probe)
        except OperatorFailed as failure:
            proposal, failed = _costs_of(failure, brief, self._operator.name), failure
        except InfraError as error:  # where an operator was at work: a probe, a workspace
            if self._aborted.is_set():
                raise
            failed = OperatorFailed(f"the machine failed: {error}", operator=error.operator)
            failed.__cause__ = error  # as `raise … from` would have it
            proposal = _costs_of(failed, brief, self._operator.name)
        else:
            failed = None
        proposal = replace(proposal, probes=probe.spent.evaluations, wall_s=time.monotonic() - began)
        cost = probe.spent + Spent.of(proposal)
        if failed is not None and failed.paused:  # nothing to record: what it has cost is with its turns
            with self._lock:
                self._observer.operator_failed(brief, failed)
        elif failed is not None:
            self._population.fail(brief, proposal.operator, failed.reason, proposal, failed.exhausted)
            machines = isinstance(failed.__cause__, InfraError)
            with self._lock:
                self._failures[failed.reason] += 1
                self._observer.operator_failed(brief, failed)
                if machines:
                    self._count_infra(failed.reason)
            self._aborted.wait(self._settings.infra_wait_s if machines else 0.0)
            if failed.exhausted and cost == Spent():
                return None
        else:
            with self._lock:
                self._observer.proposed(brief, proposal)
                child = (brief.parent.candidate, proposal.source.sha256)
                twin = child in self._judged_now
                self._judged_now.add(child)
            if twin and not proposal.calls and twins < TWINS:
                # Both were asked before either was recorded. The next brief knows what the other tries.
                reason = "another attempt is having the same kernel judged"
                self._population.fail(brief, proposal.operator, reason, proposal)
                with self._lock:
                    self._observer.operator_failed(brief, OperatorFailed(reason, operator=proposal.operator))
                return cost + (self._made_and_judged(twins + 1) or Spent())
            try:
                recorded = self._population.record(brief, proposal)
                with self._news.at("judging"):
                    cost += self._judge_and_tell(recorded, Purpose.SCORE)
            finally:
                with self._lock:
                    self._judged_now.discard(child)
        return cost

    # ---- nothing new is left to try ---------------------------------------------------------------------------------

    def _use_what_is_left(self) -> None:
        """Spend an evaluation on what is known, wait for a verdict that may bring news, or end the run."""
        if not self._news.idle():
            return
        with self._lock:
            work = self._next_of_elites()
        if work is None:
            if self._news.idle(wholly=True) and self._population.dry():
                self.stop(self._nothing_left(), "barren")
            return
        if reached := self._ledger.reserve():
            self.stop(reached, "budget")
            return
        cost = Spent()
        try:
            with self._news.at("known"):
                cost = work()
        finally:
            self._ledger.settle(cost)

    def _next_of_elites(self) -> Callable[[], Spent] | None:
        """Tune the elite of a cell deeper, each once; then measure each again, where times are measured."""
        elites = self._population.elites()
        for one in elites:
            if one.candidate not in self._deepened:
                self._deepened.add(one.candidate)
                return lambda: self._judge_and_tell(one, Purpose.SCORE, new=False, effort=DEEPER)
        for one in elites if self._judge.environment.kind == "measured" else ():
            if one.candidate not in self._settled:
                self._settled.add(one.candidate)
                scored = self._population.relative(one.candidate)
                return lambda: self._judge_and_tell(one, Purpose.SCORE, scored, anew=True)
        return None

    def _nothing_left(self) -> str:
        again = f", {len(self._settled)} measured again" if self._settled else ""
        return (
            "nothing is left to try: every strategy was tried on every parent, and every crossing; "
            f"{len(self._deepened)} elites tuned deeper{again}. What would help: a language model (--model), templates,"
            " another first kernel (--first both, --start-from), more strategies"
        )

    def _remeasure(self) -> Spent:
        """Measure an elite again, or one that only looks faster, as far as the share of the budget for that goes."""
        with self._lock:
            if self._remeasured >= self._settings.remeasured * sum(self._statuses.values()):
                return Spent()
            recorded = self._population.unsettled()
            if recorded is None or recorded.candidate in self._measuring:
                return Spent()
            self._remeasured += 1
            self._measuring.add(recorded.candidate)
        relative = self._population.relative(recorded.candidate)
        try:
            return self._judge_and_tell(recorded, Purpose.SCORE, relative, anew=True)
        finally:
            with self._lock:
                self._measuring.discard(recorded.candidate)

    def _judge_and_tell(
        self,
        recorded: Recorded,
        purpose: Purpose,
        scored: ScoredCandidate | None = None,
        anew: bool = False,
        against: Source | None = None,
        new: bool | None = None,
        effort: int = 1,
    ) -> Spent:
        """`scored`: the candidate with the knobs that it is to keep; None where the judge may tune it.

        `new`: whether the candidate's score is its first in this run; what is measured anew is not, if left out.
        """
        new = (purpose is Purpose.SCORE and not anew) if new is None else new
        began = self._ledger.clock()
        evaluation = self._steady.judge(recorded, purpose, scored, anew, against, self._deadline, effort)
        timed = evaluation.status in (Status.PASSED, Status.REFUTED)
        if timed and (evaluation.charged or purpose is Purpose.CONFIRM):
            self._hours.took(self._ledger.clock() - began, confirming=purpose is Purpose.CONFIRM)
        if self._aborted.is_set() and not evaluation.passed:  # cut off by us: no verdict, it stays pending
            return Spent.of(None, evaluation)
        parent = recorded.brief.parent.evaluation
        witnessed = evaluation.passed and self._operator.witnessed(recorded.proposal, parent, evaluation)
        with self._lock:
            for credit in self._population.tell(recorded, evaluation, witnessed):
                self._operator.learn(credit)
            counts = new or (purpose is Purpose.SCORE and not anew)
            is_best = counts and (evaluation.score or 0.0) > self._best_score
            if is_best:
                self._best_score = evaluation.score or 0.0
            if new:
                self._statuses[str(evaluation.status)] += 1
            self._count_infra(evaluation.reason if evaluation.status is Status.INFRA_ERROR else "")
            self._observer.judged(recorded, evaluation, is_best)
        return Spent.of(None, evaluation)

    def _confirm(self, bounded: bool = True) -> None:
        """Confirm one after the other until one stands, as long as that fits into the time. What does not stays due."""
        began = self._ledger.clock()
        try:
            if self._confirm_best(bounded) and not self._aborted.is_set():
                self._population.note_confirmation(due=False)
        finally:
            self._confirming_s += self._ledger.clock() - began

    def _confirm_best(self, bounded: bool) -> bool:
        """Try the best on the hidden cases, side by side with the champion. One that does not stand is refuted, and the
        next takes its place; where none stands, the first kernel is tried last. False where time did not suffice."""
        tried: set[int] = set()
        for left in reversed(range(self._settings.confirmations)):
            best, champion = self._population.best(), self._population.champion()
            if (best is None or left == 0) and champion is None and FIRST not in tried:
                first = self._population.relative(FIRST)
                best = first if first.evaluation is not None and first.evaluation.passed else best
            if best is None or self._aborted.is_set() or (champion and champion.candidate == best.candidate):
                return True
            if self._deadline.over or (bounded and not self._hours.confirmation_fits()):
                return False
            tried.add(best.candidate)
            with self._lock:
                self._observer.confirming(best.candidate, self._hours.expected_s)
            recorded = self._population.recorded(best.candidate)
            against = champion.source if champion is not None else None
            self._ledger.charge(self._judge_and_tell(recorded, Purpose.CONFIRM, best, against=against))
        return True

    # ---- when to stop ----------------------------------------------------------------------------------------------

    def _count_infra(self, reason: str) -> None:
        """`reason`: what the machine failed at; empty where it did its work."""
        self._infra = self._infra + 1 if reason else 0
        if self._infra >= self._settings.infra_stop:
            self.stop(f"the machine failed {self._infra} times in a row: {reason}", "machine")

    def _trouble(self, message: str) -> None:
        with self._lock:
            self._observer.trouble(message)


def _costs_of(failure: OperatorFailed, brief: Brief, operator: str) -> Proposal:
    """A failed attempt as the proposal that it did not make: only its costs and its trail count."""
    return Proposal(
        brief.parent.source, failure.operator or operator,
        decisions=failure.decisions, steps=failure.steps, calls=failure.calls,
    )  # fmt: skip
