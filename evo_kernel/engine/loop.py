"""The search loop: attempts in threads, confirmation, and when to stop. The package says what becomes of failures."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from evo_kernel.budget import Ledger, Spent
from evo_kernel.engine.attempts import Attempts
from evo_kernel.engine.reevaluation import Reevaluation
from evo_kernel.engine.session import EngineSettings, Observer, RunSession
from evo_kernel.errors import CutShort
from evo_kernel.types import (
    Judge,
    Operator,
    Population,
    Purpose,
    Recorded,
    ScoredCandidate,
)
from evo_kernel.types.promotion import FIRST

LOOK_S = 0.2
"""So often a thread that waits for a root looks whether the run was stopped."""
WAITS = "waiting"
"""The cause of an end that somebody asked for once every verdict under way is to come from elsewhere, later."""
LateRoot = Callable[[float], Recorded | None]
"""A root that is being made: planted within so many seconds, or None where there is none after all. Raises
TimeoutError while it is not ready."""


@dataclass(frozen=True)
class RunSummary:
    """How a run ended."""

    why: str
    cause: str  # "budget" | "barren" | "interrupted" | "machine" | WAITS
    attempts: int
    statuses: Mapping[str, int]  # candidates judged in this run, by status
    failures: Mapping[str, int]  # what operators said when they failed, most frequent first
    wall_s: float
    spent: Spent  # all sessions together
    best: ScoredCandidate | None = field(repr=False)
    confirming_s: float = 0.0  # of `wall_s`
    out_of_time: bool = False  # the hours that were asked for ended the search
    unconfirmed: bool = False  # a confirmation did not fit into the time: `resume` does it first


class Engine(RunSession):
    """The loop. `run` may be called once."""

    def __init__(
        self,
        population: Population,
        operator: Operator,
        judge: Judge,
        ledger: Ledger,
        settings: EngineSettings | None = None,
        observer: Observer | None = None,
        time_is_up: Callable[[], None] | None = None,
        late_roots: Sequence[LateRoot] = (),
    ) -> None:
        """`time_is_up` ends what operators wait for, for good; None: they wait for nothing. `late_roots`: roots that
        are still being made, in the order in which they are waited for."""
        super().__init__(population, operator, judge, ledger, settings, observer)
        self._attempts, self._known = Attempts(self), Reevaluation(self)
        self._time_is_up = time_is_up
        self._confirming_s = 0.0
        self._late_roots = list(late_roots)
        self._late = self._making = len(late_roots)  # without a verdict; of these, not made yet
        self._taking_up = 0  # threads that judge what is pending
        self._untuned: list[Recorded] = []  # roots that are tuned beside the first attempts
        self._searching = self._out_of_time = False
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def run(self) -> RunSummary:
        """Rebuild what operators have learnt, confirm what an earlier session left, judge what is pending, search until
        something says stop, confirm."""
        began = time.monotonic()
        for credit in self.population.credits():
            self.operator.learn(credit)
        best = self.population.best()
        self.best_log_us = best.evaluation.standing if best and best.evaluation else math.inf
        pending = self.population.pending()
        if self.settings.width > 1 or self._late:
            self._untuned.extend(pending if best is None else self.population.untuned())
        left = iter(pending)
        if self.population.confirmation_due():
            # Whatever the time: somebody asked for it by going on.
            self._in_threads(1, lambda: self._confirm(bounded=False))
        self._search_and_confirm(lambda: self._pending_then_attempts(left))
        while self._time_is_left() and self.go_on():
            self._search_and_confirm(self._attempts_until_stopped)
        if self._error is not None:
            raise self._error
        if any(thread.is_alive() for thread in self._threads):
            self.aborted.set()  # whoever is late has no file to write to
            self.judge.close()
        due = self.population.confirmation_due()
        return RunSummary(
            self.why, "interrupted" if self.interrupted and due else self.cause, self._attempts.asked,
            dict(self.statuses), dict(self.failures.most_common()), time.monotonic() - began, self.ledger.spent(),
            self.population.best(), self._confirming_s, self._out_of_time, due,
        )  # fmt: skip

    def _search_and_confirm(self, work: Callable[[], None]) -> None:
        self._searching, self._out_of_time = True, False
        self.enter(self.hours.search)
        self._in_threads(self.settings.width, work)
        self._searching = False
        if self.cause in ("budget", "barren") and not self.interrupted:
            self.population.note_confirmation(due=True)
            self.enter(self.hours.of_confirmation())
            self._in_threads(1, self._confirm)

    def _time_is_left(self) -> bool:
        """Whether the search was only paused, for a confirmation that took less than was kept for it."""
        paused = self._out_of_time and self._time_is_up is None and self._error is None
        if not paused or self.population.confirmation_due() or not self.hours.leaves_more():
            return False
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def makes_root(self) -> bool:
        """Whether a root is still being made, and will be judged."""
        return self._making > 0 and not self.stopped.is_set()

    # ---- threads ---------------------------------------------------------------------------------------------------

    def _in_threads(self, count: int, work: Callable[[], None]) -> None:
        """Run `work` in threads and wait for them, but not beyond an abort, nor the time that verdicts have."""
        threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        self._threads += threads
        for thread in threads:
            # In slices, so that signals reach this thread.
            while thread.is_alive() and not self.aborted.is_set() and not self.deadline.passed:
                self._end_search_in_time()
                thread.join(0.2)
        self._end_search_in_time()

    def _end_search_in_time(self) -> None:
        if self._searching and self.deadline.over and not self.stopped.is_set():
            kept = f", {self.hours.kept_s:.0f} s of it kept for confirmation" if self.hours.kept_s >= 1 else ""
            end = self.pause if self._time_is_up is None else self.stop
            end(f"{self.ledger.time_is_spent}{kept}", "budget")
            self._out_of_time = True
            if self._time_is_up is not None:
                self._time_is_up()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a thread's work; whatever it raises ends the run and is raised again by `run`."""
        try:
            with contextlib.suppress(CutShort):  # what has no verdict stays pending
                work()
        # Not handled here: carried to the thread that called `run`.
        except BaseException as error:  # noqa: BLE001
            if not self.aborted.is_set():  # after an abort the judge and the file are gone: no bug of anybody
                with self.lock:
                    self._error = self._error or error
                self.stop(f"{type(error).__name__}: {error}", "bug")

    def _pending_then_attempts(self, pending: Iterator[Recorded]) -> None:
        """Attempts begin once nothing is left to take up and something has passed: a root that is slow to judge
        holds up one thread, not all. One that is made late, by torch.compile, is often several times faster than the
        others: nothing is tuned or changed before its verdict."""
        with self.lock:
            self._taking_up += 1
        self._judge_pending(pending)
        with self.lock:
            self._taking_up -= 1
        while self._late or (self._taking_up and self.population.best() is None):
            if self.stopped.wait(LOOK_S):
                return
        self._attempts_until_stopped()

    def _judge_pending(self, pending: Iterator[Recorded]) -> None:
        """What is durable but has no verdict: the roots, and what an earlier session had in flight.

        Where there is company, roots are measured as they are, so that nobody waits while they are tuned.
        """
        while not self.stopped.is_set():
            with self.lock:
                recorded = next(pending, None)
            late = recorded is None
            recorded = recorded or self._made_late()
            if recorded is None:
                return
            untuned = recorded in self._untuned
            self.ledger.charge(self.judge_and_tell(recorded, Purpose.SCORE, remeasure=untuned, new=True))
            with self.lock:
                self._late -= late

    def _made_late(self) -> Recorded | None:
        """A root that was still being made: one thread waits for each while others judge. None: there is none left."""
        while not self.stopped.is_set():
            with self.lock:
                if not self._late_roots:
                    return None
                late_root = self._late_roots.pop(0)
            recorded = self._awaited(late_root)
            with self.lock:
                self._making -= 1
                if recorded is not None and recorded not in self._untuned:
                    self._untuned.append(recorded)
                    return recorded
                self._late -= 1  # nothing to judge: it was not to be had, or is a root already
        return None

    def _awaited(self, late_root: LateRoot) -> Recorded | None:
        while not self.stopped.is_set():
            with contextlib.suppress(TimeoutError):
                return late_root(LOOK_S)
        return None

    def _tune_first(self) -> None:
        """First kernels once more, the fastest first, with all that a judge does for a kernel."""
        while not self.stopped.is_set():
            with self.lock:
                judged = [(self.population.relative(one.candidate).evaluation, one) for one in self._untuned]
                ready = [(found.standing, one.candidate, one) for found, one in judged if found is not None]
                if not ready:
                    return
                *_, recorded = min(ready)
                self._untuned.remove(recorded)
            self.ledger.charge(self.judge_and_tell(recorded, Purpose.SCORE, new=False))

    def _attempts_until_stopped(self) -> None:
        self._tune_first()
        while not self.stopped.is_set():
            self._end_search_in_time()
            if self.stopped.is_set():
                return
            if self.population.dry():
                self._known.use_what_is_left()
                continue
            reached = self.ledger.reserve()
            if reached:
                self.stop(reached, "budget")
                return
            cost = Spent()
            try:
                cost = self._known.remeasure() + self._attempts.make()
            finally:
                self.ledger.settle(cost)

    # ---- confirmation ----------------------------------------------------------------------------------------------

    def _confirm(self, bounded: bool = True) -> None:
        """Confirm one after the other until one stands, as long as that fits into the time. What does not stays due."""
        began = self.ledger.clock()
        try:
            if self._confirm_best(bounded) and not self.aborted.is_set():
                self.population.note_confirmation(due=False)
        finally:
            self._confirming_s += self.ledger.clock() - began

    def _confirm_best(self, bounded: bool) -> bool:
        """Try the best on the hidden cases, side by side with the champion. One that does not stand is refuted, and the
        next takes its place; where none stands, the first kernel is tried last. False where time did not suffice."""
        tried: set[int] = set()
        for left in reversed(range(self.settings.confirmations)):
            best, champion = self.population.best(), self.population.champion()
            if (best is None or left == 0) and champion is None and FIRST not in tried:
                first = self.population.relative(FIRST)
                best = first if first.evaluation is not None and first.evaluation.passed else best
            if best is None or self.aborted.is_set() or (champion and champion.candidate == best.candidate):
                return True
            if self.deadline.over or (bounded and not self.hours.confirmation_fits()):
                return False
            tried.add(best.candidate)
            with self.lock:
                self.observer.confirming(best.candidate, self.hours.expected_s)
            recorded = self.population.recorded(best.candidate)
            against = champion.source if champion is not None else None
            self.ledger.charge(self.judge_and_tell(recorded, Purpose.CONFIRM, best, against=against))
        return True
