"""Record what was said to a model and what it said; serve it again later, byte for byte, without a network."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from evo_kernel.errors import UserError
from evo_kernel.types import Call
from operators.llm.base import Message, Model, ModelFailed, Reply, Tool
from operators.llm.redaction import redact
from operators.llm.transcript import digest, reply_data, reply_from, request_data

FORMAT = "evo-kernel model traffic, 1"


class NotRecorded(UserError):
    """A replay asks what the recorded run did not ask. It stops the run: from here on it is another one."""


class ModelRecorder:
    """A model whose every request and reply (or failure) becomes one line of a JSONL file. Thread-safe.

    Appends; each line is on its way to the disk before the reply is handed over. Holds no secrets. `close` it.
    """

    def __init__(self, model: Model, path: Path) -> None:
        self.name, self._model, self._path = model.name, model, path
        self._lock = threading.Lock()
        self._file: TextIO | None = None

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        request = request_data(messages, tools, schema, max_tokens)
        try:
            reply = self._model.complete(messages, tools=tools, schema=schema, max_tokens=max_tokens)
        except ModelFailed as failure:
            calls = [asdict(call) for call in failure.calls]
            self._write(request, {"failed": {"kind": failure.kind, "reason": failure.reason, "calls": calls}})
            raise
        self._write(request, {"reply": reply_data(reply)})
        return reply

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, request: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        request = _clean(request)
        row = {"model": self.name, "digest": digest(self.name, request), "request": request, **_clean(outcome)}
        with self._lock:
            if self._file is None:
                self._file = _opened(self._path)
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()


class Replayer:
    """Serves a recording. The same request asked n times is answered with its n replies, in the recorded order.

    Different requests may come in any order and from any number of threads: each finds its own answer. Thread-safe.
    Raises NotRecorded for anything else.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self._path, self._lock = path, threading.Lock()
        self._left: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        names = set()
        for row in _rows(path):
            if name is None or row["model"] == name:
                self._left[row["digest"]].append(row)
                names.add(row["model"])
        if len(names) != 1:
            asked = "there are " + (", ".join(sorted(names)) or "none")
            raise UserError(f"{path}: a replay serves one model of the recording; {asked}. Name one that it holds.")
        self.name: str = names.pop()

    @property
    def left(self) -> int:
        """Answers not served yet."""
        with self._lock:
            return sum(map(len, self._left.values()))

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        key = digest(self.name, _clean(request_data(messages, tools, schema, max_tokens)))
        with self._lock:
            known = key in self._left
            row = self._left[key].popleft() if known and self._left[key] else None
        if row is None:
            raise NotRecorded(self._complaint(known, messages))
        if failed := row.get("failed"):
            calls = tuple(Call(**call) for call in failed["calls"])
            raise ModelFailed(failed["reason"], failed["kind"], calls)
        return reply_from(row["reply"])

    def _complaint(self, known: bool, messages: Sequence[Message]) -> str:
        what = "all its recorded answers were served already" if known else "it was never asked when recording"
        last = messages[-1].content if messages else ""
        return (
            f"{self._path} holds no answer of {self.name} to this request: {what}. Replay with the configuration, "
            f"seed, task and version of the recorded run, or record anew. The request ends in: …{redact(last[-200:])!r}"
        )


def _clean(data: Mapping[str, Any]) -> Any:
    """Without secrets, as JSON reads it back."""
    return json.loads(redact(json.dumps(data)))


def _opened(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    file = path.open("a", encoding="utf-8")
    if torn:
        file.write("\n")  # a process was killed in the middle of its last line
    if file.tell() == 0:
        file.write(json.dumps({"format": FORMAT}) + "\n")
    return file


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        if not lines or json.loads(lines[0]).get("format") != FORMAT:
            raise ValueError("the first line does not name the format")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is no recording of model traffic ({error}). Make one with a run that records."
        ) from None
    rows = []
    for line in lines[1:]:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # cut off when its process was killed; its reply had not been used
    return rows
