"""The searches of a suite: processes in lanes, so that no task can end another, and a file that remembers them.

What is done follows from the results: the same command again skips what had its budget and ended by itself, goes on
with what was cut short, and a larger budget resumes the populations.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evo_kernel.cli.suite.lanes import INTERRUPTED_S, Halt, Lane
from evo_kernel.cli.suite.results import Results
from evo_kernel.cli.suite.search import Times, Worker, has_harness, searched_s
from evo_kernel.cli.suite.sharing import Budget, Clock, Job, Waiting
from evo_kernel.cli.suite.tasks import Chosen
from evo_kernel.observe.protocols import NONE
from evo_kernel.observe.suites import SuiteRow

GRACE_S = 600.0
"""What a search may take beyond its budget: loading, the first kernel, baselines, confirming what it found."""
ENDING_S = 4.0  # of --within: the report
LEAST_SEARCH_S = 5.0  # of --within: what a search gets, however little there is
CLOSING_S = 12.0  # of --within: before its end a search is asked to end as by ^C
SHARE_S = 45.0  # of --within: no task gets less; rather, some are left for the same command again
WORTH_S = 30.0  # of --within: with less left no search is begun


@dataclass(frozen=True)
class Result:
    """What came of a job; `minutes`: of search that count as had."""

    job: Job
    row: SuiteRow
    minutes: float


@dataclass
class SuiteRun:
    """All searches of a suite in its folder, of which this process is the only writer (`results.alone_in`)."""

    folder: Path
    chosen: Sequence[Chosen]
    budget: Budget
    extra: Sequence[str] = ()
    retry: bool = False
    lanes: Sequence[Lane] = (Lane(),)
    device: str = "auto"
    stock: bool = True  # ask the benchmarks' own harnesses too
    began: float = field(default_factory=time.monotonic)
    halt: Halt = field(default_factory=Halt)

    def __post_init__(self) -> None:
        self._results = Results(self.folder, self.retry)
        self._begun: set[str] = set()

    def rows(self) -> Iterator[tuple[SuiteRow, int]]:
        """Do what is left to do, in lanes; each result as it comes, with its turn."""
        if self.budget.within_s is None:
            for turn in range(1, self.budget.turns + 1):
                yield from self._round(self._jobs(*self.budget.until(turn)), turn, Clock(None, 1))
            return
        left, others = self._ending(), self._sharing()
        lanes = max(1, min(len(self.lanes), len(left) + len(others)))
        clock = Clock(self.began + self.budget.within_s - ENDING_S, lanes)
        yield from self._round(left, 1, clock, len(others))
        yield from self._round(self._sharing(), 1, clock)

    def found(self) -> list[SuiteRow]:
        """The latest of every task; what has no result is waiting."""
        return [self._results.row(one.spec) or self._waiting(one) for one in self.chosen]

    def others(self) -> list[SuiteRow]:
        """Of tasks that are not chosen this time."""
        labels = {one.label for one in self.chosen}
        return [row for row in self._results.every_row() if row.label not in labels]

    def _waiting(self, one: Chosen) -> SuiteRow:
        begun = one.spec in self._begun or (self.folder / one.population).exists()
        why = "under way when the command ended, nothing was judged yet" if begun else "not reached yet"
        return SuiteRow(one.spec, one.label, one.group, "waiting", f"{why}: the same command goes on")

    def _jobs(self, minutes: float, evaluations: int | None) -> list[Job]:
        every = [Job(one, minutes, evaluations, not self._done(one, minutes, evaluations)) for one in self.chosen]
        return [job for job in every if job.search or self._lacks_stock(job.one)]

    def _ending(self) -> list[Job]:
        """For a command with a time of its own, first: what an earlier one left to confirm, or to ask about."""
        jobs = []
        for one in self.chosen:
            row = self._results.row(one.spec)
            if row is not None and row.cut and row.status == "passed":
                jobs.append(Job(one, self.budget.minutes, self.budget.evaluations, confirm=True))
            elif self._lacks_stock(one):
                jobs.append(Job(one, search=False))
        return jobs

    def _sharing(self) -> list[Job]:
        """Then: what has no result yet or was cut short before, or all once more where everything has one."""
        rows = {one: self._results.row(one.spec) for one in self.chosen}
        able = [one for one, row in rows.items() if row is None or row.status != "failed"]
        new = [one for one in able if rows[one] is None]
        cut = [one for one in able if (row := rows[one]) is not None and row.cut and not row.correct]
        searched = [*new, *cut]
        if all((row := rows[one]) is not None and row.status == "waiting" for one in searched):  # it may always be so
            searched += [one for one in able if one not in searched and not self._had_most(one)]
        return [Job(one, self.budget.minutes, self.budget.evaluations) for one in searched]

    def _had_most(self, one: Chosen) -> bool:
        record = self._results.get(one.spec)
        return bool(self.budget.minutes and record and record["minutes"] >= 0.9 * self.budget.minutes)

    def _lacks_stock(self, one: Chosen) -> bool:
        row = self._results.row(one.spec)
        if not self.stock or row is None or not row.correct or not has_harness(one):
            return False
        return row.stock is None or (self.retry and row.stock.verdict == NONE)

    def _done(self, one: Chosen, minutes: float, evaluations: int | None) -> bool:
        record, row = self._results.get(one.spec), self._results.row(one.spec)
        if record is None or row is None:
            return False
        if row.status == "failed":
            return True  # until --retry
        if row.cut:
            return False
        had = record["evaluations"]
        enough = had is None or (evaluations is not None and evaluations <= had)
        return enough and minutes <= record["minutes"] + 1e-9

    def _round(self, jobs: Sequence[Job], turn: int, clock: Clock, behind: int = 0) -> Iterator[tuple[SuiteRow, int]]:
        """All jobs once; `behind`: jobs of a next round. What a lane raises ends the others and is raised here."""
        waiting, results = Waiting(jobs), queue.Queue[Result | BaseException]()
        lanes = list(self.lanes)[: max(1, len(jobs))] if jobs else []
        threads = [
            threading.Thread(target=self._work, args=(lane, waiting, results, clock, behind), daemon=True)
            for lane in lanes
        ]
        for thread in threads:
            thread.start()
        fault: BaseException | None = None
        while any(thread.is_alive() for thread in threads) or not results.empty():
            try:
                result = results.get(timeout=0.2)  # in slices, so that signals reach this thread
            except queue.Empty:
                continue
            if isinstance(result, BaseException):
                fault = fault or result
                self.halt.asked.set()
                self.halt.now.set()
                continue
            self._keep(result)
            yield result.row, turn
        if fault is not None:
            raise fault

    def _work(self, lane: Lane, waiting: Waiting, results: queue.Queue[Any], clock: Clock, behind: int) -> None:
        """The life of a lane."""
        worker = Worker(lane, self.folder, self.extra, self.halt, self.device)
        try:
            while not self.halt.asked.is_set() and (job := waiting.take(lane)) is not None:
                result = self._do(worker, job, 1 + len(waiting) + behind, clock, lambda: waiting.next(lane))
                if result is not None:
                    results.put(result)
        # Not handled here: carried to the thread that reads the results.
        except BaseException as error:  # noqa: BLE001
            results.put(error)
        finally:
            worker.close()

    def _do(
        self, worker: Worker, job: Job, waiting: int, clock: Clock, following: Callable[[], Job | None]
    ) -> Result | None:
        began, row, minutes = time.monotonic(), self._results.row(job.one.spec), job.minutes
        has, ahead = has_harness(job.one), worker.loads(job.one)
        if job.search:
            searching_s = self._searching_s(job, waiting, clock)
            if searching_s is None:
                return None
            if has:
                worker.get_ready_to_ask(job.one, self.stock)
            self._begun.add(job.one.spec)
            before = row.stock if row is not None else None
            plenty = waiting > 2 * len(self.lanes)  # else a lane would keep what another is free to do
            after = following() if plenty else None
            known = after.one if after is not None and after.search else None
            row = worker.search(job.one, self._times(job, searching_s, waiting, clock), job.evaluations, known)
            if row is None:
                return None
            row = replace(row, stock=before)
            if clock.limited or self.halt.asked.is_set():
                minutes = row.minutes
        else:
            record = self._results.get(job.one.spec)
            minutes, searching_s = record["minutes"] if record is not None else 0.0, 0.0
        if not self.halt.asked.is_set() and clock.left_s > WORTH_S:
            after = following()
            if after is not None and after.search:
                worker.get_set(after.one)  # loads while the harness is asked
        if row is not None and has:
            row = (worker.stock if self.stock else worker.write)(job.one, row, clock.left_s)
        if job.search and ahead:
            clock.took(time.monotonic() - began, searching_s)
        return Result(job, row, minutes) if row is not None else None

    def _searching_s(self, job: Job, waiting: int, clock: Clock) -> float | None:
        """Seconds of search that a job is granted; None where there is not enough time left to begin one."""
        if not clock.limited:
            return job.minutes * 60
        if clock.left_s < WORTH_S:
            return None
        if job.confirm:
            return 0.0
        searching_s = max(LEAST_SEARCH_S, self._share_s(waiting, clock) - clock.beside_s)
        return min(searching_s, job.minutes * 60) if job.minutes else searching_s

    @staticmethod
    def _share_s(waiting: int, clock: Clock) -> float:
        return min(clock.left_s, max(SHARE_S, clock.share(waiting)))

    def _times(self, job: Job, searching_s: float, waiting: int, clock: Clock) -> Times:
        if not clock.limited:
            return Times(searching_s, None, searching_s + GRACE_S)
        had_s = searched_s(self.folder / job.one.population)
        budget_s = min(had_s + searching_s, job.minutes * 60 or float("inf"))
        left_s, share_s = clock.left_s, self._share_s(waiting, clock)
        polite_s = max(1.0, min(left_s - CLOSING_S, max(1.5 * share_s, share_s + WORTH_S)))
        return Times(budget_s, polite_s, min(left_s, polite_s + INTERRUPTED_S))

    def _keep(self, result: Result) -> None:
        job = result.job
        had = self._results.get(job.one.spec) or {}
        evaluations = job.evaluations if job.search else had.get("evaluations")
        self._results.keep(job.one.spec, result.minutes, evaluations, result.row)
