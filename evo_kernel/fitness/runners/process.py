"""Starts, queries with a deadline, and kills the GPU process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evo_kernel.errors import InfraError

START_S = 180.0
_END_S = 60.0  # for the driver to release a killed process
LOAD, GO = b"load\n", b"go\n"
_LINE_BYTES = 64 << 20  # of one answer: a thousand samples are 20 kB
_DROPPED = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # overwriting freed memory relies on the default allocator


class Lost(Exception):
    """The process ended without an answer."""


class WorkerProcess:
    """One worker process: `start` imports its modules, `go` gives it the GPU. For one thread at a time."""

    def __init__(self, command: Sequence[str], gpu: int, log: Any) -> None:
        self._log = log
        self.served = 0  # requests answered; a new process cannot suffer from an earlier request
        self.progress = 0  # parts of the last request that were started
        self.info: dict[str, Any] = {}  # once it has the GPU
        self._loads = False
        self._buffer = b""
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            env=worker_env(gpu),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # see `_send`

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def load(self) -> None:
        """Let it also import what baselines need, before it has the GPU."""
        self._loads = True
        with contextlib.suppress(Lost):
            self._send(LOAD, START_S)

    def wait_until_loaded(self) -> None:
        """Raises InfraError."""
        with self._starting():
            if self._loads:
                self._loads = "loaded" not in json.loads(self._line(START_S))

    def go(self) -> dict[str, Any]:
        """Let it use the GPU; returns its information. Raises InfraError."""
        self.wait_until_loaded()
        with self._starting():
            self._send(GO, START_S)
            self.info = json.loads(self._line(START_S))
        return self.info

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        try:
            yield
        except (Lost, TimeoutError, json.JSONDecodeError) as error:
            self.kill()
            raise InfraError(f"the GPU process did not start ({error!r}):\n{self._tail()}") from error

    def ask(self, message: bytes, deadline_s: float) -> dict[str, Any]:
        """Send one request and return the answer; every line of progress renews the deadline.

        Raises Lost, TimeoutError.
        """
        self.progress = 0
        self._send(message, deadline_s)
        return self.answered(deadline_s)

    def answered(self, deadline_s: float) -> dict[str, Any]:
        """The next answer. Raises Lost, TimeoutError."""
        while True:
            try:
                answer = json.loads(self._line(deadline_s))
            except ValueError as error:  # a partial line of a killed process
                raise Lost from error
            if "progress" not in answer:
                self.served += 1
                return answer
            self.progress += 1

    def kill(self) -> None:
        """Kill it and wait until the driver has released its resources. Raises InfraError if it does not."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired as error:
            raise InfraError(
                f"the GPU process {self.pid} did not end within {_END_S:g} s: it hangs in the driver; "
                "look at nvidia-smi and dmesg, and reset the GPU"
            ) from error
        finally:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _send(self, message: bytes, deadline_s: float) -> None:
        """Raises Lost, also if the process does not read: then no plan of this message runs yet."""
        assert self._process.stdin is not None
        end, left = time.monotonic() + deadline_s, memoryview(message)
        try:
            fd = self._process.stdin.fileno()
            while left:
                if not select.select([], [fd], [], max(0.0, end - time.monotonic()))[1]:
                    raise Lost
                left = left[os.write(fd, left) :]
        except (OSError, ValueError) as error:
            raise Lost from error

    def _line(self, deadline_s: float) -> bytes:
        """The next line. Raises Lost at the end of the stream, TimeoutError."""
        assert self._process.stdout is not None
        end = time.monotonic() + deadline_s
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            try:
                fd = self._process.stdout.fileno()
                answers = left > 0 and select.select([fd], [], [], left)[0]
                data = os.read(fd, 1 << 20) if answers else None
            except (OSError, ValueError) as error:  # closed by another thread
                raise Lost from error
            if data is None:
                raise TimeoutError
            if not data:
                raise Lost
            self._buffer += data
            if len(self._buffer) > _LINE_BYTES:
                raise Lost
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _tail(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        return self._log.read().decode(errors="replace")


def worker_env(gpu: int) -> dict[str, str]:
    """Environment of a process on one GPU: `gpu` counts among those visible to this process."""
    root = str(Path(__file__).resolve().parents[3])
    env = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    env["PYTHONPATH"] = os.pathsep.join([root, *(p for p in sys.path if p)])
    visible = [name for name in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    env["CUDA_VISIBLE_DEVICES"] = visible[gpu] if gpu < len(visible) else str(gpu)
    env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # numbers as in nvidia-smi
    env.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no worker processes that disturb timing
    return env


def open_log() -> Any:
    return tempfile.TemporaryFile()


_AHEAD: dict[tuple[tuple[str, ...], int], WorkerProcess] = {}


def load_ahead(command: Sequence[str], gpu: int = 0, *, now: bool = True) -> WorkerProcess:
    """Start the worker of the next runner with this command; one that was started for another runner ends.

    `now`: it takes the GPU while the runner's process loads; else when the runner lets it.
    """
    key = (tuple(command), gpu)
    for other in [one for one in _AHEAD if one[1] == gpu and one != key]:
        _AHEAD.pop(other).kill()
    if key not in _AHEAD:
        _AHEAD[key] = WorkerProcess((*command, "now") if now else command, gpu, open_log())
    return _AHEAD[key]


def loaded_ahead(command: tuple[str, ...], gpu: int) -> WorkerProcess | None:
    """A worker started ahead with this command, at most once."""
    ahead = _AHEAD.pop((command, gpu), None)
    return ahead if ahead is not None and ahead.alive() else None


def usual_command(spec: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "evo_kernel.fitness.runners.cuda_process", spec)
