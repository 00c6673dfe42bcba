"""The searches of a suite: processes in lanes, so that no task can end another, and a file that remembers them.

`results.jsonl` in the suite's folder gets one line for each result, by one writer, and is only appended to. What is
done follows from it: the same command again skips what had its budget, and a larger budget resumes the populations.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from evo_kernel.cli.suite_lanes import INTERRUPTED_S, Halt, Lane
from evo_kernel.cli.suite_search import Times, Worker, has_harness, searched_s
from evo_kernel.cli.suite_tasks import Chosen
from evo_kernel.errors import UserError
from evo_kernel.observe.protocols import NONE, stock_of
from evo_kernel.observe.suites import SuiteRow

GRACE_S = 600.0
"""What a search may take beyond its budget: loading, the first kernel, baselines, confirming what it found."""
RESULTS = "results.jsonl"
ENDING_S = 4.0  # of --within: the report
LEAST_SEARCH_S = 5.0  # of --within: what a search gets, however little there is
CLOSING_S = 12.0  # of --within: before its end a search is asked to end as by ^C
SHARE_S = 45.0  # of --within: no task gets less; rather, some are left for the same command again
WORTH_S = 30.0  # of --within: with less left no search is begun
BESIDE_S = 20.0  # of --within: what a search takes beyond its budget, until some have told


@dataclass(frozen=True)
class Budget:
    """Of one task, over all turns; or of the whole command."""

    minutes: float
    evaluations: int | None
    turns: int
    within_s: float | None = None  # seconds of the whole command: every task gets an equal share

    def until(self, turn: int) -> tuple[float, int | None]:
        """Minutes and evaluations that may be spent by the end of a turn (from 1)."""
        evaluations = None if self.evaluations is None else max(1, self.evaluations * turn // self.turns)
        return self.minutes * turn / self.turns, evaluations


@dataclass(frozen=True)
class Job:
    """What is to be done for a task: search until its population had so much, or ask its harness alone."""

    one: Chosen
    minutes: float = 0.0
    evaluations: int | None = None
    search: bool = True


@dataclass(frozen=True)
class Result:
    """What came of a job; `minutes`: of search that count as had."""

    job: Job
    row: SuiteRow
    minutes: float


class Clock:
    """Shares out what is left of the whole command's time. Thread-safe."""

    def __init__(self, end: float | None, lanes: int) -> None:
        self._end, self._lanes = end, lanes
        self._beside: list[float] = []
        self._lock = threading.Lock()

    @property
    def limited(self) -> bool:
        return self._end is not None

    @property
    def left_s(self) -> float:
        return float("inf") if self._end is None else self._end - time.monotonic()

    def share(self, waiting: int) -> float:
        """Seconds for a search that is begun now, all that it takes beside included; `waiting`: itself and others."""
        return min(self.left_s, self.left_s * self._lanes / max(waiting, 1))

    def took(self, whole_s: float, search_s: float) -> None:
        """A job took so long, of which it was allowed to search so long; one that ended early says nothing."""
        if whole_s > search_s:
            with self._lock:
                self._beside.append(whole_s - search_s)

    @property
    def beside_s(self) -> float:
        """What a job takes beyond its search's budget."""
        with self._lock:
            recent = self._beside[-2 * self._lanes :]
            return sum(recent) / len(recent) if recent else BESIDE_S


@dataclass
class SuiteRun:
    """All searches of a suite in its folder. Raises UserError where the folder cannot be made."""

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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{self.folder} cannot be made ({error.strerror}): name another folder with --to"
            ) from error
        self._results = self.folder / RESULTS
        self._records = self._read()
        if self.retry:
            self._records = {task: one for task, one in self._records.items() if one["row"]["status"] != "failed"}

    def rows(self) -> Iterator[tuple[SuiteRow, int]]:
        """Do what is left to do, in lanes; each result as it comes, with its turn."""
        if self.budget.within_s is not None:
            yield from self._round(self._sharing(), 1)
            return
        for turn in range(1, self.budget.turns + 1):
            yield from self._round(self._jobs(*self.budget.until(turn)), turn)

    def found(self) -> list[SuiteRow]:
        """The latest of every task; what has not been reached is waiting."""
        return [
            self._known(one)
            or SuiteRow(one.spec, one.label, one.group, "waiting", "not reached yet: the same command goes on")
            for one in self.chosen
        ]

    def _jobs(self, minutes: float, evaluations: int | None) -> list[Job]:
        every = [Job(one, minutes, evaluations, not self._done(one, minutes, evaluations)) for one in self.chosen]
        return [job for job in every if job.search or self._lacks_stock(job.one)]

    def _sharing(self) -> list[Job]:
        """For a command with a time of its own: what has no result yet, or all once more where everything has one."""
        able = [one for one in self.chosen if (row := self._known(one)) is None or row.status != "failed"]
        new = [one for one in able if one.spec not in self._records]
        asked = [Job(one, search=False) for one in able if one not in new and self._lacks_stock(one)]
        searched = new if new or asked else [one for one in able if not self._had_most(one)]
        return [*asked, *(Job(one, self.budget.minutes, self.budget.evaluations) for one in searched)]

    def _had_most(self, one: Chosen) -> bool:
        return bool(self.budget.minutes) and self._records[one.spec]["minutes"] >= 0.9 * self.budget.minutes

    def _known(self, one: Chosen) -> SuiteRow | None:
        record = self._records.get(one.spec)
        return _row(record["row"]) if record is not None else None

    def _lacks_stock(self, one: Chosen) -> bool:
        row = self._known(one)
        if not self.stock or row is None or not row.correct or not has_harness(one):
            return False
        return row.stock is None or (self.retry and row.stock.verdict == NONE)

    def _done(self, one: Chosen, minutes: float, evaluations: int | None) -> bool:
        record = self._records.get(one.spec)
        if record is None:
            return False
        if record["row"]["status"] == "failed":
            return True  # until --retry
        had = record["evaluations"]
        enough = had is None or (evaluations is not None and evaluations <= had)
        return enough and minutes <= record["minutes"] + 1e-9

    def _round(self, jobs: Sequence[Job], turn: int) -> Iterator[tuple[SuiteRow, int]]:
        """All jobs once. What a lane raises ends the others and is raised here."""
        waiting, results = deque(jobs), queue.Queue[Result | BaseException]()
        lanes = list(self.lanes)[: max(1, len(jobs))] if jobs else []
        within = self.budget.within_s
        clock = Clock(None if within is None else self.began + within - ENDING_S, max(1, len(lanes)))
        threads = [
            threading.Thread(target=self._work, args=(lane, waiting, results, clock), daemon=True) for lane in lanes
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

    def _work(self, lane: Lane, waiting: deque[Job], results: queue.Queue[Any], clock: Clock) -> None:
        """The life of a lane."""
        worker = Worker(lane, self.folder, self.extra, self.halt, self.device)
        try:
            while not self.halt.asked.is_set():
                try:
                    job = waiting.popleft()
                except IndexError:
                    return
                result = self._do(worker, job, 1 + len(waiting), clock)
                if result is not None:
                    results.put(result)
        # Not handled here: carried to the thread that reads the results.
        except BaseException as error:  # noqa: BLE001
            results.put(error)
        finally:
            worker.close()

    def _do(self, worker: Worker, job: Job, waiting: int, clock: Clock) -> Result | None:
        began, row, minutes = time.monotonic(), self._known(job.one), job.minutes
        asks = self.stock and has_harness(job.one)
        if job.search:
            searching_s = self._searching_s(job, waiting, clock)
            if searching_s is None:
                return None
            if asks:
                worker.get_ready_to_ask(job.one)
            before = row.stock if row is not None else None
            row = worker.search(job.one, self._times(job, searching_s, waiting, clock), job.evaluations)
            if row is None:
                return None
            row = replace(row, stock=before)
            if clock.limited or self.halt.asked.is_set():
                minutes = row.minutes
        else:
            minutes, searching_s = self._records[job.one.spec]["minutes"], 0.0
        if waiting > 1 and not self.halt.asked.is_set() and clock.left_s > WORTH_S:
            worker.get_ready()  # loads while the harness is asked
        if row is not None and asks:
            row = worker.stock(job.one, row, clock.left_s)
        if job.search:
            clock.took(time.monotonic() - began, searching_s)
        return Result(job, row, minutes) if row is not None else None

    def _searching_s(self, job: Job, waiting: int, clock: Clock) -> float | None:
        """Seconds of search that a job is granted; None where there is not enough time left to begin one."""
        if not clock.limited:
            return job.minutes * 60
        if clock.left_s < WORTH_S:
            return None
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
        had = self._records.get(job.one.spec, {}).get("evaluations")
        evaluations = job.evaluations if job.search else had
        record = {
            "task": job.one.spec,
            "minutes": result.minutes,
            "evaluations": evaluations,
            "row": asdict(result.row),
        }
        self._records[job.one.spec] = record
        with self._results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _read(self) -> dict[str, dict[str, Any]]:
        """Task → its latest line; a line that a killed process left unfinished counts as not there."""
        found: dict[str, dict[str, Any]] = {}
        if not self._results.exists():
            return found
        for line in self._results.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            found[record["task"]] = record
        return found


def _row(data: dict[str, Any]) -> SuiteRow:
    stock = stock_of(data["stock"]) if data.get("stock") else None
    told: dict[str, Any] = data | {"torch_operations": tuple(data["torch_operations"]), "stock": stock}
    return SuiteRow(**told)
