"""The searches of a suite: a worker a GPU, so that no task can end another, and a file that remembers them.

What is done follows from the results: the same command again skips what had its budget and ended by itself, goes on
with what was cut short, and a larger budget resumes the populations.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evo_kernel.app.suite.lanes import Halt, Lane
from evo_kernel.app.suite.results import Results
from evo_kernel.app.suite.search import SearchOptions, SuiteWorker, has_harness
from evo_kernel.app.suite.tasks import SuiteTask
from evo_kernel.observe import document, suites
from evo_kernel.observe.harness_verdict import NONE
from evo_kernel.observe.suites import SuiteRow


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
    halt: Halt = field(default_factory=Halt)

    def __post_init__(self) -> None:
        self._results = Results(self.folder, self.retry)

    def rows(self) -> Iterator[SuiteRow]:
        """Do what is left to do; each result as it comes. What a worker raises ends the others and is raised here."""
        left = [one for one in self.chosen if not self._done(one) or self._lacks_stock(one)]
        waiting, results = queue.SimpleQueue[SuiteTask](), queue.Queue[tuple[SuiteTask, SuiteRow] | BaseException]()
        for one in left:
            waiting.put(one)
        threads = [
            threading.Thread(target=self._work, args=(lane, waiting, results), daemon=True)
            for lane in self.lanes[: len(left)]
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
                continue
            self._keep(*result)
            yield result[1]
        if fault is not None:
            raise fault

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
        data = {"suite": suite, "minutes": self.minutes, "interrupted": self.halt.asked.is_set()}
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
        if not self.stock or row is None or not row.correct or not has_harness(one):
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

    def _work(self, lane: Lane, waiting: queue.SimpleQueue[SuiteTask], results: queue.Queue[Any]) -> None:
        """The life of a worker."""
        worker = SuiteWorker(lane, self.folder, self.options, self.halt)
        try:
            while not self.halt.asked.is_set():
                one = waiting.get_nowait()
                if (row := self._do(worker, one)) is not None:
                    results.put((one, row))
        except queue.Empty:
            pass
        # Not handled here: carried to the thread that reads the results.
        except BaseException as error:  # noqa: BLE001
            results.put(error)

    def _do(self, worker: SuiteWorker, one: SuiteTask) -> SuiteRow | None:
        """Search, unless that is done; then ask its harness."""
        row = self._results.row(one.spec)
        if not self._done(one):
            before = row.stock if row is not None else None
            row = worker.search(one, self.minutes, self.evaluations)
            row = replace(row, stock=before) if row is not None else None
        return worker.ask(one, row, self.stock) if row is not None and has_harness(one) else row

    def _keep(self, one: SuiteTask, row: SuiteRow) -> None:
        had = self._results.get(one.spec)
        if had is not None and self._done(one):  # its harness was asked, no more
            self._results.keep(one.spec, had["minutes"], had["evaluations"], row)
        else:
            self._results.keep(one.spec, self.minutes, self.evaluations, row)
