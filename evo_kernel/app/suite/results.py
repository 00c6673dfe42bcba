"""What a suite's folder remembers: `results.jsonl`, a line for each result, by one writer, only appended to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evo_kernel.errors import PopulationLocked, UserError
from evo_kernel.observe.harness_verdict import stock_of
from evo_kernel.observe.suites import SuiteRow

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
    stock = stock_of(data["stock"]) if data.get("stock") else None
    cut = data.get("cut", data["status"] == "passed")
    told: dict[str, Any] = data | {"torch_operations": tuple(data["torch_operations"]), "stock": stock, "cut": cut}
    return SuiteRow(**told)
