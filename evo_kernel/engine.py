"""The loop: ask → propose → record → judge → tell → learn, `width` attempts in flight.

Four kinds of failure have four fates: the kernel's is a Status in its Evaluation; the agent's (OperatorFailed) is
recorded with what it cost, and the search goes on; the machine's (InfraError) is retried, then told as an infra_error
that is never scored and leaves its candidate pending, or, where an operator was at work, fails its attempt, and ends
the run when it keeps happening; ours stops the run and raises. With `width = 1` and a seed a run is deterministic.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from evo_kernel.budget import Ledger, Spent
from evo_kernel.errors import InfraError, OperatorFailed
from evo_kernel.types import (
    Brief,
    Evaluation,
    Judge,
    Knobs,
    Operator,
    Population,
    Proposal,
    Purpose,
    Recorded,
    Relative,
    Source,
    Status,
)


class Memory(Population, Protocol):
    """A population whose champions can be confirmed on hidden cases."""

    @property
    def task_identity(self) -> str: ...

    def champion(self) -> Relative | None: ...

    def recorded(self, candidate: int) -> Recorded: ...

    def relative(self, candidate: int) -> Relative: ...

    def unsettled(self) -> Recorded | None: ...


class Observer(Protocol):
    """Hears what happens, one call at a time, from many threads. Must be quick and must not raise."""

    def attempt_started(self, brief: Brief) -> None: ...

    def proposed(self, brief: Brief, proposal: Proposal) -> None: ...

    def operator_failed(self, brief: Brief, failure: OperatorFailed) -> None: ...

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None: ...

    def trouble(self, message: str) -> None: ...


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

    def trouble(self, message: str) -> None:
        del message


PATIENCE = 8  # attempts in a row that cost nothing, before waiting for a verdict that is under way


@dataclass(frozen=True)
class EngineSettings:
    """How the loop runs, and when it gives up."""

    width: int = 1  # attempts in flight
    attempts: int | None = None  # so many end the run; None: no limit
    barren: int = 200  # so many attempts in a row that cost nothing end the run: there is nothing new left to try
    infra_retries: int = 2  # further tries of an evaluation that the machine failed, beyond the judge's own
    infra_wait_s: float = 2.0  # before each of them
    infra_stop: int = 3  # so many evaluations or attempts in a row that the machine failed end the run
    remeasured: float = 0.2  # of judged candidates: share that may be measured again where noise leaves order open
    confirmations: int = 5  # candidates tried on the hidden cases at the end, best first, until one stands


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    why: str
    cause: str  # "budget" | "barren" | "interrupted" | "machine"
    attempts: int
    statuses: Mapping[str, int]  # candidates judged in this run, by status
    failures: Mapping[str, int]  # what operators said when they failed, most frequent first
    wall_s: float
    spent: Spent  # all sessions together
    best: Relative | None = field(repr=False)


class Engine:
    """One run over one population. `run` may be called once; `stop` and `abort` from a thread or signal handler."""

    def __init__(
        self,
        population: Memory,
        operator: Operator,
        judge: Judge,
        ledger: Ledger,
        settings: EngineSettings | None = None,
        observer: Observer | None = None,
        apply_knobs: Callable[[Source, Knobs], Source] | None = None,
    ) -> None:
        """`apply_knobs` writes a setting of the knobs into a source.

        What is confirmed is what would be exported, and operators start from a parent as it was scored: a child that
        fell back to untuned knobs would look slower than its parent whatever its structure is worth.
        """
        self._population, self._operator, self._judge, self._ledger = population, operator, judge, ledger
        self._settings, self._observer = settings or EngineSettings(), observer or Silence()
        self._apply_knobs = apply_knobs or (lambda source, knobs: source)
        self._lock = threading.RLock()  # guards the counts below; verdicts and lessons are taken in one order
        self._told = threading.Condition(self._lock)  # something was told: there may be new parents
        self._begun = self._attempts = self._barren = self._infra = self._judging = self._remeasured = 0
        self._under_way = 0  # attempts between their brief and their verdict
        self._measuring: set[int] = set()  # candidates that are being measured again
        self._statuses: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._best_score = 0.0
        self._why = self._cause = ""
        self._error: BaseException | None = None
        self._stopped, self._aborted = threading.Event(), threading.Event()

    def stop(self, why: str, cause: str = "interrupted") -> None:
        """Start nothing new; what is in flight finishes. The first reason given is the one reported."""
        if not self._stopped.is_set():
            self._why, self._cause = why, cause
            self._stopped.set()
            # In a thread of its own: a signal may arrive while its own thread holds the ledger's lock.
            threading.Thread(target=self._ledger.close, daemon=True).start()

    def abort(self, why: str) -> None:
        """Stop, and wait for nothing. The caller closes the judge, which ends its children."""
        self.stop(why)
        self._aborted.set()

    def run(self) -> Summary:
        """Rebuild what operators have learnt, judge what is pending, search until something says stop, confirm."""
        began = time.monotonic()
        for credit in self._population.credits():
            self._operator.learn(credit)
        best = self._population.best()
        self._best_score = (best.evaluation.score or 0.0) if best and best.evaluation else 0.0
        self._in_threads(1, self._judge_pending)
        self._in_threads(self._settings.width, self._attempts_until_stopped)
        if self._cause in ("budget", "barren"):
            self._in_threads(1, self._confirm)
        if self._error is not None:
            raise self._error
        return Summary(
            self._why, self._cause, self._attempts, dict(self._statuses), dict(self._failures.most_common()),
            time.monotonic() - began, self._ledger.spent(), self._population.best(),
        )  # fmt: skip

    # ---- threads ---------------------------------------------------------------------------------------------------

    def _in_threads(self, count: int, work: Callable[[], None]) -> None:
        """Run `work` in threads and wait for them, but not beyond an abort."""
        threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not self._aborted.is_set():  # in slices, so that signals reach this thread
                thread.join(0.2)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a thread's work; whatever it raises ends the run and is raised again by `run`."""
        try:
            work()
        # Not handled here: carried to the thread that called `run`.
        except BaseException as error:  # noqa: BLE001
            if not self._aborted.is_set():  # after an abort the judge and the file are gone: no bug of anybody
                with self._lock:
                    self._error = self._error or error
                self.stop(f"{type(error).__name__}: {error}", "bug")

    def _judge_pending(self) -> None:
        """What is durable but has no verdict: the first kernel, and what an earlier session had in flight."""
        for recorded in self._population.pending():
            if self._stopped.is_set():
                return
            self._ledger.charge(self._judge_and_tell(recorded, Purpose.SCORE))

    def _attempts_until_stopped(self) -> None:
        while not self._stopped.is_set():
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
        with self._told:
            self._under_way += 1
        try:
            cost = self._made_and_judged()
        finally:
            with self._told:
                self._under_way -= 1
                if not self._under_way:  # those who wait for a verdict are not to be woken by others' failures
                    self._told.notify_all()
        self._count_barren(cost)
        return cost

    def _made_and_judged(self) -> Spent:
        brief = self._tuned(self._population.ask())
        with self._lock:
            self._attempts += 1
            self._observer.attempt_started(brief)
        probe, began = _Probe(self._judge), time.monotonic()
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
        else:
            with self._lock:
                self._observer.proposed(brief, proposal)
            cost += self._judge_while_others_wait(self._population.record(brief, proposal))
        return cost

    def _judge_while_others_wait(self, recorded: Recorded) -> Spent:
        """Judge a new candidate; attempts that find nothing to try wait for such a verdict (`_count_barren`)."""
        cost = Spent()
        with self._told:
            self._judging += 1
        try:
            cost = self._judge_and_tell(recorded, Purpose.SCORE)
        finally:
            with self._told:
                self._judging -= 1
                if _found_out(cost):
                    self._barren = 0
                self._told.notify_all()
        return cost

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
        knobs = relative.evaluation.knobs if relative.evaluation is not None else ()
        try:
            return self._judge_and_tell(recorded, Purpose.SCORE, knobs, anew=True)
        finally:
            with self._lock:
                self._measuring.discard(recorded.candidate)

    def _tuned(self, brief: Brief) -> Brief:
        """The brief with the knobs that its parent was scored with written into the parent's source."""
        parent = brief.parent
        return replace(brief, parent=replace(parent, source=self._as_scored(parent)))

    def _judge_and_tell(
        self,
        recorded: Recorded,
        purpose: Purpose,
        knobs: Knobs = (),
        anew: bool = False,
        against: Source | None = None,
    ) -> Spent:
        source = recorded.proposal.source
        evaluation = self._evaluate(self._apply_knobs(source, knobs) if knobs else source, purpose, anew, against)
        if evaluation.passed and (reason := evaluation.refutation):  # right, but promoted by the pairs alone
            evaluation = replace(evaluation, status=Status.REFUTED, reason=reason, score=None)
        if self._aborted.is_set() and not evaluation.passed:  # cut off by us: no verdict, it stays pending
            return Spent.of(None, evaluation)
        if knobs:  # the verdict on a setting of this candidate, not on a source of its own
            evaluation = replace(evaluation, source=source.sha256, knobs=knobs)
        parent = recorded.brief.parent.evaluation
        witnessed = evaluation.passed and self._operator.witnessed(recorded.proposal, parent, evaluation)
        with self._lock:
            for credit in self._population.tell(recorded, evaluation, witnessed):
                self._operator.learn(credit)
            is_best = purpose is Purpose.SCORE and not anew and (evaluation.score or 0.0) > self._best_score
            if is_best:
                self._best_score = evaluation.score or 0.0
            if purpose is Purpose.SCORE and not anew:
                self._statuses[str(evaluation.status)] += 1
            self._count_infra(evaluation.reason if evaluation.status is Status.INFRA_ERROR else "")
            self._observer.judged(recorded, evaluation, is_best)
        return Spent.of(None, evaluation)

    def _as_scored(self, relative: Relative) -> Source:
        """A candidate's source with the knobs that it was scored with written in."""
        knobs = relative.evaluation.knobs if relative.evaluation is not None else ()
        return self._apply_knobs(relative.source, knobs) if knobs else relative.source

    def _evaluate(
        self, source: Source, purpose: Purpose, anew: bool = False, against: Source | None = None
    ) -> Evaluation:
        """The verdict; an infra_error when the machine failed on every try."""
        left = self._settings.infra_retries
        while True:
            try:
                return self._judge.evaluate(source, purpose, anew, against)
            except InfraError as error:
                if left == 0 or self._aborted.is_set():
                    return self._unjudged(source, purpose, str(error) or "the machine failed and gave no reason")
                with self._lock:
                    self._observer.trouble(f"the machine failed, {left} more tries: {error}")
                left -= 1
                self._aborted.wait(self._settings.infra_wait_s)

    def _unjudged(self, source: Source, purpose: Purpose, reason: str) -> Evaluation:
        task, environment = self._population.task_identity, self._judge.environment
        return Evaluation(source.sha256, task, purpose, environment, Status.INFRA_ERROR, reason)

    def _confirm(self) -> None:
        """Try the best on the hidden cases, side by side with the champion. One that does not stand is refuted, and the
        next takes its place."""
        for _ in range(self._settings.confirmations):
            best, champion = self._population.best(), self._population.champion()
            if best is None or self._aborted.is_set() or (champion and champion.candidate == best.candidate):
                return
            knobs = best.evaluation.knobs if best.evaluation is not None else ()
            recorded = self._population.recorded(best.candidate)
            against = self._as_scored(champion) if champion is not None else None
            self._ledger.charge(self._judge_and_tell(recorded, Purpose.CONFIRM, knobs, against=against))

    # ---- when to stop ----------------------------------------------------------------------------------------------

    def _count_infra(self, reason: str) -> None:
        """`reason`: what the machine failed at; empty where it did its work."""
        self._infra = self._infra + 1 if reason else 0
        if self._infra >= self._settings.infra_stop:
            self.stop(f"the machine failed {self._infra} times in a row: {reason}", "machine")

    def _count_barren(self, cost: Spent) -> None:
        """An attempt that had nothing judged brought nothing new: it failed, or its plans were all known already. What
        was said to a model on the way is no news: one that always answers the same would keep a run going for ever.

        While others are being judged there may soon be new parents: a few more tries, then wait for their verdicts.
        Where enough attempts were barren, those still under way have the last word, however long a model thinks.
        """
        with self._told:
            self._barren = 0 if _found_out(cost) else self._barren + 1
            if self._judging:
                if self._barren >= PATIENCE:
                    self._barren = PATIENCE  # what comes of the others is not known yet
                    self._told.wait(1.0)
                return
            while self._barren >= self._settings.barren and self._under_way and not self._stopped.is_set():
                self._told.wait(1.0)
            if self._barren < self._settings.barren:
                return
            common = self._failures.most_common(1)
            said = f"; operators said most often: {common[0][0]}" if common else ""
            self.stop(f"{self._barren} attempts in a row found nothing new to try{said}", "barren")


class _Probe:
    """The judge as an operator at work sees it. Keeps account of what was charged."""

    def __init__(self, judge: Judge) -> None:
        self._judge, self.spent = judge, Spent()

    def __call__(self, source: Source) -> Evaluation:
        evaluation = self._judge.evaluate(source, Purpose.PROBE)
        self.spent += Spent.of(None, evaluation)
        return evaluation


def _found_out(cost: Spent) -> bool:
    """Whether something new was judged."""
    return cost.evaluations > 0 or cost.gpu_seconds > 0


def _costs_of(failure: OperatorFailed, brief: Brief, operator: str) -> Proposal:
    """A failed attempt as the proposal that it did not make: only its costs and its trail count."""
    return Proposal(
        brief.parent.source, failure.operator or operator,
        decisions=failure.decisions, steps=failure.steps, calls=failure.calls,
    )  # fmt: skip
