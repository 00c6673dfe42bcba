"""Answers the commands of a workspace: one bounded line of JSON each way over a socket in the folder.

A client that says nothing, says too much, or is gone costs one thread for a few seconds and nobody else anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from operators.workbench.bench import ToolOutcome

REQUEST_BYTES = 256 * 1024
PATIENCE_S = 10.0  # for a request to arrive whole, and for an answer to be taken
AT_ONCE = 8  # connections; the next ones are told to come again

Answer = Callable[[str, str | Mapping[str, Any]], ToolOutcome]


class RequestServer:
    """Use it as a context manager. `path`: of the socket, in a folder that exists."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self._path, self._answer = path, answer
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._socket = socket.socket(socket.AF_UNIX)
        self._closed = threading.Event()

    def __enter__(self) -> RequestServer:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # by the descriptor: a socket's path may be 107 bytes long, no more
            self._path.unlink(missing_ok=True)
            self._socket.bind(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)
        self._socket.listen(64)
        self._socket.settimeout(0.2)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        """Takes no more requests; one under way is carried to its end, and its answer thrown away."""
        self._closed.set()
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # a client that is gone
            connection.settimeout(PATIENCE_S)
            if not self._room.acquire(blocking=False):
                _say(connection, f"Failed: {AT_ONCE} commands are under way already; wait for one of them", True)
                return
            try:
                said = self._asked(connection)
                if said is not None:
                    outcome = self._answered(*said)
                    _say(connection, outcome.text, outcome.failed, outcome.submission is not None)
            finally:
                self._room.release()

    def _answered(self, tool: str, arguments: str | Mapping[str, Any]) -> ToolOutcome:
        try:
            return self._answer(tool, arguments)
        except Exception:  # noqa: BLE001 - a bug of ours: the agent is told, and goes on; whoever runs us sees the trace
            traceback.print_exc()
            return ToolOutcome(
                f"Failed: {tool[:60]} broke down, which is not your fault. Try it otherwise.", failed=True
            )

    def _asked(self, connection: socket.socket) -> tuple[str, str | Mapping[str, Any]] | None:
        with connection.makefile("rb") as file:
            line = file.readline(REQUEST_BYTES + 1)
        if not line.endswith(b"\n"):
            _say(connection, f"Failed: a request is one line of JSON of at most {REQUEST_BYTES} bytes", True)
            return None
        try:
            given = json.loads(line)
            tool, arguments = given["tool"], given["arguments"]
            if isinstance(tool, str) and isinstance(arguments, str | Mapping):
                return tool, arguments
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        _say(connection, 'Failed: a request is {"tool": NAME, "arguments": {...}}', True)
        return None


def _say(connection: socket.socket, text: str, failed: bool, committed: bool = False) -> None:
    answer = {"text": text, "failed": failed, "committed": committed}
    connection.sendall(json.dumps(answer).encode() + b"\n")
