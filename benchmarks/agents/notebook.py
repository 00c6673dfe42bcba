"""What a bench has found out so far: one file of rows, one a model call and one a finished item. Resumable.

A call is written down before anything is made of it, so that no interruption loses count of what was spent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.types import Call
from operators.llm.base import Model, ModelFailed, ModelRequest, Reply

NOBODY = ("budget", "down", "invalid")
"""Kinds of failure in which no model had a say: what was asked is asked again in a later session."""
DOWN = 3  # times in a row that an endpoint may be down before the bench gives up
Row = dict[str, Any]


class Notebook:
    """Rows of one model on one set of situations. Thread-safe."""

    def __init__(self, path: Path, about: Mapping[str, str]) -> None:
        """Raises UserError where the file is about others."""
        self._path, self._lock = path, threading.Lock()
        self.rows: list[Row] = []
        if path.exists():
            self.rows = [row for row in map(_parsed, path.read_text().splitlines()) if row is not None]
        heads = [row for row in self.rows if row["kind"] == "about"]
        if heads and heads[0]["about"] != dict(about):
            raise UserError(f"{path} is about {heads[0]['about']}: give another --out, or the same model and tree")
        if not heads:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.write({"kind": "about", "about": dict(about)})

    def write(self, row: Row) -> None:
        text = json.dumps(row, separators=(",", ":"), default=str) + "\n"
        with self._lock:
            self.rows.append(row)
            with self._path.open("a") as file:
                file.write(text)

    def items(self, part: str) -> dict[str, Row]:
        """Finished items by id."""
        return {row["id"]: row for row in self._rows("item") if row["part"] == part}

    def calls(self, part: str | None = None) -> list[Row]:
        return [row for row in self._rows("call") if part in (None, row["part"])]

    def _rows(self, kind: str) -> list[Row]:
        with self._lock:
            return [row for row in self.rows if row["kind"] == kind]


class Counted(Model):
    """A model that is asked at most so many times in all; each answer, and each failure, is a row. Thread-safe."""

    def __init__(self, model: Model, notebook: Notebook, part: str, limit: int) -> None:
        """`limit`: calls of this part, earlier sessions' included."""
        self.name = model.name
        self._model, self._notebook, self._part = model, notebook, part
        self._lock, self._down, self._thread = threading.Lock(), 0, threading.local()
        self._left = max(0, limit - sum(row["calls"] for row in notebook.calls(part)))

    @property
    def left(self) -> int:
        with self._lock:
            return self._left

    @property
    def failed(self) -> str:
        """How this thread's last call failed, for one who is told only what came instead; empty where it did not."""
        return getattr(self._thread, "failed", "")

    def answer(self, request: ModelRequest) -> Reply:
        try:
            reply = self._asked(request)
        except ModelFailed as failure:
            self._thread.failed = failure.kind
            raise
        self._thread.failed = ""
        return reply

    def _asked(self, request: ModelRequest) -> Reply:
        with self._lock:
            if self._left <= 0:
                raise ModelFailed(f"the bench's calls for {self._part} are used up", "budget")
            self._left -= 1
        try:
            reply = self._model.answer(request)
        except ModelFailed as failure:
            self._note(failure.calls, failure.kind)
            self._give_up(failure)
            raise
        self._down = 0
        self._note(reply.calls, "")
        return reply

    def _give_up(self, failure: ModelFailed) -> None:
        """Raises UserError where asking on is of no use: a wrong key or name, an endpoint that is down for long."""
        self._down = self._down + 1 if failure.kind == "down" else 0
        if failure.kind == "invalid" or self._down >= DOWN:
            raise UserError(
                f"{self.name} does not answer: {failure.reason}. Mend that; the bench goes on where it was."
            )

    def _note(self, calls: Sequence[Call], failed: str) -> None:
        """One row for what was asked once. A second try, or a repair of a malformed answer, counts as well; what
        nobody answered does not."""
        cost = 0 if failed in NOBODY else max(1, len(calls))
        with self._lock:
            self._left -= cost - 1
        dollars = [call.dollars for call in calls if call.dollars is not None]
        tokens = sum(call.tokens_in + call.tokens_out for call in calls)
        self._notebook.write(
            {
                "kind": "call", "part": self._part, "failed": failed, "calls": cost, "tokens": tokens,
                "dollars": sum(dollars) if dollars else None,
            }
        )  # fmt: skip


def _parsed(text: str) -> Row | None:
    try:
        return json.loads(text)
    except json.JSONDecodeError:  # cut short while it was written
        return None
