"""Child processes that answer one request at a time, and may crash or hang: pickles over pipes, both sides ours."""

from __future__ import annotations

import os
import pickle
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


class Lost(Exception):
    """The child died, or did not answer in time."""


class Child:
    """`python -m MODULE WORD`, started at the first request and again after a loss."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: object, deadline_s: float) -> Any:
        """The answer. Raises Lost, with what the child wrote to stderr last."""
        process = self._process or self._start()
        try:
            assert process.stdin
            data = pickle.dumps(request)
            process.stdin.write(struct.pack("<Q", len(data)) + data)
            process.stdin.flush()
            until = time.monotonic() + deadline_s
            (size,) = struct.unpack("<Q", self._read(process, 8, until))
            return pickle.loads(self._read(process, size, until))
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise Lost(f"{type(error).__name__} {error} (exit status {process.returncode})") from error

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *self._words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self._process

    def _read(self, process: subprocess.Popen[bytes], size: int, until: float) -> bytes:
        assert process.stdout
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError
                part = os.read(process.stdout.fileno(), size - len(data))
                if not part:
                    raise EOFError
                data += part
        return data


def serve(answer: Callable[[Any], Any]) -> None:
    """The child's side: answers requests from stdin until it ends. What prints to stdout goes to stderr."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    while header := requests.read(8):
        data = pickle.dumps(answer(pickle.loads(requests.read(struct.unpack("<Q", header)[0]))))
        replies.write(struct.pack("<Q", len(data)) + data)
        replies.flush()
