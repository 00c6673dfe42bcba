"""The searches of a suite: a worker a GPU, so that no task can end another, and a file that remembers them.

What is done follows from the results (`results.jsonl`, a line for each, only appended to): the same command again skips
what had its budget and ended by itself, goes on with what was cut short, and a larger budget resumes the populations.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from evo_kernel.app.suite.lanes import Lane
from evo_kernel.app.suite.search import ASKED, WRITTEN, SearchOptions, SuiteTask, SuiteWorker, benchmark_of
from evo_kernel.errors import PopulationLocked, UserError
from evo_kernel.observe import document, suites
from evo_kernel.observe.suites import NONE, WRONG, SuiteRow, suite_row

RESULTS = "results.jsonl"


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make a suite's folder, and keep other suites out of it. Raises UserError."""
    from populations.connect import OwnerLock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = OwnerLock(folder / RESULTS)
    except PopulationLocked as taken:
        raise UserError(
            f"a suite already runs in {folder}: process {taken.pid} on {taken.host}. Wait for it, stop it, or name "
            "another folder with --to"
        ) from taken
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}): name another folder with --to") from error
    try:
        yield
    finally:
        lock.release()


class Results:
    """Task → its latest line. `retry`: those of tasks that failed count as not there."""

    def __init__(self, folder: Path, retry: bool = False) -> None:
        self._path = folder / RESULTS
        self._records = self._read()
        self._dropped = {task for task, one in self._records.items() if retry and one["row"]["status"] == "failed"}

    def get(self, task: str) -> dict[str, Any] | None:
        """minutes and evaluations that count as had, and the row; None where there is nothing that counts."""
        return None if task in self._dropped else self._records.get(task)

    def row(self, task: str) -> SuiteRow | None:
        record = self.get(task)
        return _row(record["row"]) if record is not None else None

    def every_row(self) -> list[SuiteRow]:
        """In the order of their first lines, what failed too."""
        return [_row(record["row"]) for record in self._records.values()]

    def keep(self, task: str, minutes: float, evaluations: int | None, row: SuiteRow) -> None:
        record = {"task": task, "minutes": minutes, "evaluations": evaluations, "row": asdict(row)}
        self._records[task] = record
        self._dropped.discard(task)
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, 2)
                torn = file.read(1) != b"\n"  # somebody was killed while it wrote: its line counts as not there
                file.write(b"\n" if torn else b"")
            file.write(json.dumps(record).encode() + b"\n")

    def _read(self) -> dict[str, dict[str, Any]]:
        """A line that a killed process left unfinished counts as not there."""
        found: dict[str, dict[str, Any]] = {}
        if not self._path.exists():
            return found
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
                found[record["task"]] = record
            except (ValueError, KeyError, TypeError):
                continue
        return found


def _row(data: dict[str, Any]) -> SuiteRow:
    """`cut` is younger than some lines: there, what is not confirmed may have been cut short."""
    return suite_row({"cut": data["status"] == "passed"} | data)


@dataclass
class SuiteRun:
    """All searches of a suite in its folder, of which this process is the only writer (`results.alone_in`)."""

    folder: Path
    chosen: Sequence[SuiteTask]
    minutes: float  # of search for each task, over all sessions
    evaluations: int | None = None  # the same
    options: SearchOptions = field(default_factory=SearchOptions)
    retry: bool = False
    lanes: Sequence[Lane] = (Lane(),)
    stock: bool = True  # ask the benchmarks' own harnesses too
    halt: threading.Event = field(default_factory=threading.Event)
    """Once it is set, nothing new is started, and what is under way ends as at its own SIGTERM."""

    def __post_init__(self) -> None:
        self._results = Results(self.folder, self.retry)
        self._unbegun, self._lock = deque[SuiteTask](), threading.Lock()  # searches that no worker has begun

    def rows(self) -> Iterator[SuiteRow]:
        """Do what is left to do; each result as it comes. What a task raises ends the others and is raised here."""
        left = [one for one in self.chosen if not self._done(one) or self._lacks_stock(one)]
        self._unbegun = deque(one for one in left if not self._done(one))
        workers = [SuiteWorker(lane, self.folder, self.options, self.halt) for lane in self.lanes]
        free = queue.SimpleQueue[SuiteWorker]()
        for worker in workers:
            free.put(worker)
        with contextlib.ExitStack() as ending, ThreadPoolExecutor(len(self.lanes)) as pool:
            for worker in workers:
                ending.callback(worker.close)
            waiting = {pool.submit(self._do, one, free): one for one in left}
            try:
                for done in as_completed(waiting):
                    if (row := done.result()) is not None:
                        self._keep(waiting[done], row)
                        yield row
            except BaseException:
                self.halt.set()  # ends what the others do
                raise

    def found(self) -> list[SuiteRow]:
        """The latest of every task; what has no result is waiting."""
        return [self._results.row(one.spec) or self._waiting(one) for one in self.chosen]

    def others(self) -> list[SuiteRow]:
        """Of tasks that are not chosen this time."""
        labels = {one.label for one in self.chosen}
        return [row for row in self._results.every_row() if row.label not in labels]

    def report(self, suite: str) -> tuple[dict[str, Any], str]:
        """Write report.md, .html and .json into the folder; the data of the last, and the text of the first."""
        rows, title = [*self.found(), *self.others()], f"Suite {suite}"
        data = {"suite": suite, "minutes": self.minutes, "interrupted": self.halt.is_set()}
        data |= suites.as_data(rows)
        blocks = suites.report(title, rows)
        for name in ("report.md", "report.html"):
            document.save(self.folder / name, title, blocks)
        (self.folder / "report.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        return data, document.markdown(blocks)

    def _waiting(self, one: SuiteTask) -> SuiteRow:
        begun = (self.folder / one.population).exists()
        why = "under way when the command ended, nothing was judged yet" if begun else "not reached yet"
        return SuiteRow(one.spec, one.label, one.group, "waiting", f"{why}: the same command goes on")

    def _lacks_stock(self, one: SuiteTask) -> bool:
        row = self._results.row(one.spec)
        if not self.stock or row is None or not row.correct or benchmark_of(one) != ASKED:
            return False
        return row.stock is None or (self.retry and row.stock.verdict == NONE)

    def _done(self, one: SuiteTask) -> bool:
        record, row = self._results.get(one.spec), self._results.row(one.spec)
        if record is None or row is None:
            return False
        if row.status == "failed":
            return True  # until --retry
        if row.cut:
            return False
        had = record["evaluations"]
        enough = had is None or (self.evaluations is not None and self.evaluations <= had)
        return enough and self.minutes <= record["minutes"] + 1e-9

    def _do(self, one: SuiteTask, free: queue.SimpleQueue[SuiteWorker]) -> SuiteRow | None:
        """By a free worker: search, unless that is done; then ask its harness. None where there is nothing to tell.

        Where the harness calls a kernel in TF32 wrong, its reference may not use TF32, for want of a kernel in cuDNN:
        a search in IEEE float32 follows, and its row counts if that kernel is right.
        """
        if self.halt.is_set():
            return None
        worker, before, exact = free.get(), self._results.row(one.spec), one.in_ieee()
        try:
            if exact is not None and before is not None and before.task == exact.spec:
                return self._answered(worker, exact, before, self._done(one))
            row = self._answered(worker, one, before, self._done(one))
            if exact is None or row is None or row.stock is None or row.stock.verdict != WRONG:
                return row
            other = self._answered(worker, exact, None, done=False)
            right = other is not None and other.stock is not None and other.stock.correct
            return other if right else row
        finally:
            free.put(worker)

    def _answered(self, worker: SuiteWorker, one: SuiteTask, row: SuiteRow | None, done: bool) -> SuiteRow | None:
        """The row after a search, unless that is `done`, and after its harness was asked."""
        if not done:
            before = row.stock if row is not None else None
            row = worker.search(one, self.minutes, self.evaluations, self._following(one))
            if row is not None:
                row = replace(row, stock=before, reason="; ".join(filter(None, (one.note, row.reason))))
        if row is None or benchmark_of(one) not in WRITTEN:
            return row
        return worker.ask(one, row, self.stock and benchmark_of(one) == ASKED)

    def _following(self, one: SuiteTask) -> SuiteTask | None:
        """What the worker that begins with this search is likely to search next: the others come before it."""
        with self._lock:
            if one in self._unbegun:  # unless it is a second search
                self._unbegun.remove(one)
            return self._unbegun[len(self.lanes) - 1] if len(self._unbegun) >= len(self.lanes) else None

    def _keep(self, one: SuiteTask, row: SuiteRow) -> None:
        had = self._results.get(one.spec)
        if had is not None and self._done(one):  # its harness was asked, no more
            self._results.keep(one.spec, had["minutes"], had["evaluations"], row)
        else:
            self._results.keep(one.spec, self.minutes, self.evaluations, row)
