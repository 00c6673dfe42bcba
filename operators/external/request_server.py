"""Answers the commands of a workspace: one bounded line of JSON each way over a socket in the folder."""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from operators.workbench.toolset import ToolOutcome

REQUEST_BYTES = 256 * 1024
PATIENCE_S = 10.0  # for a request to arrive whole, and for an answer to be taken
AT_ONCE = 8  # connections; the next ones are told to come again

Answer = Callable[[str, str | Mapping[str, Any]], ToolOutcome]


class RequestServer(socketserver.ThreadingUnixStreamServer):
    """Use it as a context manager. `path`: of the socket, in a folder that exists."""

    daemon_threads, block_on_close, request_queue_size = True, False, 64

    def __init__(self, path: Path, answer: Answer) -> None:
        self.answer, self.room, self._path = answer, threading.BoundedSemaphore(AT_ONCE), path
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # by the descriptor: a socket's path may be 107 bytes long, no more
            path.unlink(missing_ok=True)
            super().__init__(f"/proc/self/fd/{folder}/{path.name}", _Request)
        finally:
            os.close(folder)
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def __exit__(self, *error: object) -> None:
        """Takes no more requests; one under way is carried to its end, and its answer thrown away."""
        self.shutdown()
        self.server_close()
        with contextlib.suppress(OSError):
            self._path.unlink()


class _Request(socketserver.StreamRequestHandler):
    timeout = PATIENCE_S

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, RequestServer)
        with contextlib.suppress(OSError):  # a client that is gone
            if not server.room.acquire(blocking=False):
                self._say(f"Failed: {AT_ONCE} commands are under way already; wait for one of them", True)
                return
            try:
                self._serve(server.answer)
            finally:
                server.room.release()

    def _serve(self, answer: Answer) -> None:
        line = self.rfile.readline(REQUEST_BYTES + 1)
        if not line.endswith(b"\n"):
            self._say(f"Failed: a request is one line of JSON of at most {REQUEST_BYTES} bytes", True)
            return
        try:
            given = json.loads(line)
            tool, arguments = given["tool"], given["arguments"]
            if not (isinstance(tool, str) and isinstance(arguments, str | Mapping)):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            self._say('Failed: a request is {"tool": NAME, "arguments": {...}}', True)
            return
        try:
            outcome = answer(tool, arguments)
        except Exception:  # noqa: BLE001 - a bug of ours: the agent is told, and goes on; whoever runs us sees the trace
            traceback.print_exc()
            self._say(f"Failed: {tool[:60]} broke down, which is not your fault. Try it otherwise.", True)
        else:
            self._say(outcome.text, outcome.failed, outcome.submission is not None)

    def _say(self, text: str, failed: bool, committed: bool = False) -> None:
        answer = {"text": text, "failed": failed, "committed": committed}
        self.wfile.write(json.dumps(answer).encode() + b"\n")
