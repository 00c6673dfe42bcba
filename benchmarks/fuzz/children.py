"""Child processes that answer one request at a time, and may crash or hang."""

from __future__ import annotations

import importlib
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

_SPAWN = multiprocessing.get_context("spawn")


class Lost(Exception):
    """The child died, or did not answer in time."""


class Child:
    """A process with what `MODULE.answering()` returns, started at the first request and again after a loss."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def ask(self, request: object, deadline_s: float) -> Any:
        """The answer. Raises Lost."""
        pipe = self._pipe or self._start()
        try:
            pipe.send(request)
            if not pipe.poll(deadline_s):
                raise TimeoutError
            return pipe.recv()
        except (OSError, EOFError, TimeoutError) as error:
            raise Lost(f"{type(error).__name__} {error} (exit status {self.close()})") from error

    def close(self) -> int | None:
        """Its exit status, None where it never began."""
        if self._process is None or self._pipe is None:
            return None
        self._process.kill()
        self._process.join()
        self._pipe.close()
        status, self._process, self._pipe = self._process.exitcode, None, None
        return status

    def _start(self) -> Connection:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(self._module, theirs), daemon=True)
        self._process.start()
        theirs.close()
        return self._pipe


def _serve(module: str, pipe: Connection) -> None:
    """The child's side: answers until its parent is gone."""
    answer = importlib.import_module(module).answering()
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        pipe.send(answer(request))
