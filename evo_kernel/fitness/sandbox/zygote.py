"""The parent's side of a zygote: start it, submit jobs, read their results as untrusted data, restart it if it ends.

Thread-safe: several threads may have jobs in flight on one zygote. When the control socket closes, a supervisor kills
all processes of the zygote (zygote_process.py). A job's whole process tree is killed at its deadline.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import TypeAdapter, ValidationError

from evo_kernel.errors import InfraError
from evo_kernel.fitness.sandbox import preloaded
from evo_kernel.fitness.sandbox.guards import SandboxLimits
from evo_kernel.fitness.sandbox.preloaded import ForkedZygote
from evo_kernel.fitness.sandbox.zygote_process import ANSWER, REQUEST, WORK
from evo_kernel.scratch import Scratch, remove

MOST_VALUES = 4_000_000
"""In one answer, counted as commas: an empty list takes 3 bytes of JSON and 100 of memory. Eight plans of 4,096
launches have 1.4 million."""
STOP_S = 5.0
START_S = 120.0
GRACE_S = 10.0


_Form = TypeVar("_Form")


class MalformedReply(ValueError):
    """An answer that does not validate; the message says where."""


@dataclass(frozen=True)
class JobResult:
    """Result of one job. `data` is untrusted; it is None unless the child finished by itself."""

    outcome: str  # "done" | "timeout" | "memory" | "disk" | "answer": too long | "crash" | a signal's name | "exit N"
    data: bytes | None
    detail: str = ""
    confinement: str = "none"  # active guards, reported before the child read anything of a candidate

    def read(self, form: type[_Form]) -> _Form:
        """The answer as a `form` that pydantic validates strictly. Raises MalformedReply."""
        if (self.data or b"").count(b",") > MOST_VALUES:
            raise MalformedReply(f"it has more than {MOST_VALUES} values")
        try:
            return TypeAdapter(form).validate_json(self.data or b"", strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))[:200]
            raise MalformedReply(f"{where}: {first['msg']}"[:400]) from error


class Zygote:
    """One process of a role (zygote_process.ROLES) that forks confined children."""

    def __init__(self, role: str, extra_env: dict[str, str] | None = None) -> None:
        self.role = role
        self.env = dict(extra_env or {})
        self._scratch = Scratch(role)
        self.root = self._scratch.path
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._process: subprocess.Popen[bytes] | ForkedZygote | None = None
        self._control: socket.socket | None = None
        self._starting: socket.socket | None = None  # the later `_control`, while the process starts
        self._closed = False

    def run(
        self, request: dict[str, Any], limits: SandboxLimits, files: Mapping[str, bytes | memoryview] | None = None
    ) -> JobResult:
        """Run one job, for at most `limits.deadline_s` + GRACE_S. A lost zygote is restarted once.

        Raises InfraError.
        """
        for attempt in (1, 2):
            folder = Path(tempfile.mkdtemp(dir=self.root))
            try:
                (folder / WORK).mkdir()
                for name, data in (files or {}).items():
                    (folder / name).write_bytes(data)
                (folder / REQUEST).write_text(json.dumps(request), encoding="utf-8")
                with (folder / ANSWER).open("xb+", buffering=0) as answer:  # open, so that the child cannot replace it
                    reply = self._submit(str(folder), limits).result(limits.deadline_s + GRACE_S)
                    return _result(answer, reply, limits)
            except (FutureTimeout, ConnectionError, OSError) as error:
                self._kill()
                if attempt == 2 or self._closed:
                    raise InfraError(f"the {self.role} process was lost twice: {error}") from error
            finally:
                remove(folder)
        raise AssertionError("unreachable")

    def start(self) -> None:
        """Start the process if it does not run. Returns when its imports are done."""
        with self._lock:
            self._ensure_started()

    def close(self) -> None:
        """Kill the process and all its children; remove its files. Idempotent."""
        self._closed = True
        if self._starting is not None:  # a thread that waits for the start holds the lock
            with contextlib.suppress(OSError):
                self._starting.shutdown(socket.SHUT_RDWR)
        self._kill()
        self._scratch.close()

    def _submit(self, folder: str, limits: SandboxLimits) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            control = self._ensure_started()
            job = next(self._ids)
            self._waiting[job] = future
            message = {"id": job, "folder": folder, "limits": asdict(limits)}
            control.sendall(json.dumps(message).encode() + b"\n")
        return future

    def _ensure_started(self) -> socket.socket:
        if self._closed:
            raise InfraError(f"the {self.role} process is closed")
        if self._process is not None and self._process.poll() is None and self._control is not None:
            return self._control
        ours, theirs = socket.socketpair()
        ours.settimeout(START_S)
        self._starting = ours
        if self._closed:  # by another thread in the meantime, which has not seen this socket
            raise InfraError(f"the {self.role} process is closed")
        with (self.root / "zygote.log").open("wb") as log:
            self._process = self.spawn(ours, theirs, log)
        theirs.close()
        if not _first_line(ours):
            text = (self.root / "zygote.log").read_text(errors="replace")[-2000:]
            raise InfraError(f"the {self.role} process did not start:\n{text}")
        ours.settimeout(None)
        self._control = ours
        threading.Thread(target=self._listen, args=(ours,), daemon=True, name=f"zygote-{self.role}").start()
        return ours

    @property
    def pid(self) -> int | None:
        """The process that watches over it, while it runs."""
        return self._process.pid if self._process is not None else None

    def spawn(
        self, ours: socket.socket, theirs: socket.socket, log: BinaryIO
    ) -> subprocess.Popen[bytes] | ForkedZygote:
        """A process that serves jobs which come by `theirs`, and that ends with `ours`."""
        return preloaded.fork_zygote(self.role, self.root, self.env, ours, theirs, log)

    def _listen(self, control: socket.socket) -> None:
        pending = b""
        while True:
            try:
                data = control.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                reply = json.loads(line)
                future = self._waiting.pop(reply["id"], None)
                if future is not None:
                    future.set_result(reply)
        with self._lock:
            if self._control is control:
                self._control = None
                lost, self._waiting = self._waiting, {}
            else:
                lost = {}
        for future in lost.values():
            future.set_exception(ConnectionError(f"the {self.role} process ended"))

    def _kill(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            control, self._control = self._control, None
            lost, self._waiting = self._waiting, {}
        if process is not None:
            _stop(process)
        if control is not None:
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
            control.close()
        for future in lost.values():
            if not future.done():
                future.set_exception(ConnectionError(f"the {self.role} process was stopped"))


def _first_line(control: socket.socket) -> bool:
    try:
        return bool(control.recv(4096))
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes] | ForkedZygote) -> None:
    """End a supervisor and the processes that it watches."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:  # perhaps it is suspended: killing it ends its namespace, if it has one
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _result(answer: BinaryIO, reply: dict[str, Any], limits: SandboxLimits) -> JobResult:
    """The zygote's report on a child, with the child's answer file."""
    outcome, confinement = str(reply["outcome"]), str(reply["confinement"]) or "none"
    size = os.fstat(answer.fileno()).st_size
    if outcome == "done" and size > limits.answer_bytes:
        outcome = "answer"
    if outcome != "done":
        detail = os.pread(answer.fileno(), 4000, 0).decode(errors="replace") if outcome == "crash" else ""
        return JobResult(outcome, None, detail, confinement)
    data = os.pread(answer.fileno(), size, 0)
    if not data:
        return JobResult("crash", None, "the child ended without an answer", confinement)
    return JobResult("done", data, "", confinement)
