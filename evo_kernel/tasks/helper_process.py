"""A child process that answers requests one at a time, for code that may crash, hang, or hold much memory; and work
in a thread that nobody has to wait for."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import selectors
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from evo_kernel.processes import end_with_owner
from evo_kernel.scratch import Scratch

Made = TypeVar("Made")
NO_GPU = {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
"""Environment of a process that sees no GPU, and in which Triton compiles."""
PATIENCE = 5.0
"""How many times a deadline may pass by the clock: other processes may have the processors."""


class HelperLost(Exception):
    """The process gave no answer and is gone. `code`: what it ended with; None where it was too slow."""

    def __init__(self, code: int | None = None) -> None:
        super().__init__(code)
        self.code = code


class HelperProcess:
    """The process, seen from its owner: started when first asked, and again when it was lost. Thread-safe.

    `statement`: Python that calls `answer_requests`. It sees no GPU, unless `environment` says otherwise. `caches`:
    variables that name a folder for it. The owner removes the folder: it kills the process, which cannot.
    """

    def __init__(self, statement: str, environment: Mapping[str, str] = NO_GPU, caches: Sequence[str] = ()) -> None:
        seldom = "import gc; gc.set_threshold(50_000)"  # importing torch makes a million objects, which stay
        self._command = [sys.executable, "-P", "-c", f"{seldom}; {statement}"]
        self._environment = dict(environment)
        self._caches = caches
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # a forked process starts its own
        self._lock = threading.Lock()

    def ask(self, request: Any, deadline_s: float) -> Any:
        """Its answer, within seconds of its processor time. Raises HelperLost."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # reading the answer says it
                pickle.dump(request, process.stdin)
                process.stdin.flush()
            waiting = selectors.DefaultSelector()
            waiting.register(process.stdout, selectors.EVENT_READ)
            if not answered(process.pid, deadline_s, lambda: bool(waiting.select(0.5))):
                self.end()
                raise HelperLost
            try:
                with warnings.catch_warnings(action="ignore"):  # of torch, about how its own trees are pickled
                    return pickle.load(process.stdout)  # our own child wrote it
            except (EOFError, pickle.UnpicklingError) as error:
                raise HelperLost(self.end(within_s=1.0)) from error

    def end(self, within_s: float = 0.0) -> int:
        """The exit code of the process, which is killed if it still runs after so many seconds."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(within_s)
        process.kill()
        return process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._caches and self._owner != os.getpid():
            folder = Scratch("caches")
            self._environment.update(dict.fromkeys(self._caches, str(folder.path)))
            atexit.register(self._leave, folder, os.getpid())
        if self._process is None or self._owner != os.getpid():
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **self._environment},
            )
            self._owner = os.getpid()
        return self._process

    def _leave(self, folder: Scratch, owner: int) -> None:
        if os.getpid() == owner:  # not a process that was forked meanwhile
            self.end()
            folder.close()


def answer_requests(answer: Callable[[Any], Any]) -> None:
    """The child: an answer to each request until nobody asks any more. What it prints goes nowhere."""
    end_with_owner()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)  # our own parent wrote it
        except EOFError:
            return
        pickle.dump(answer(request), answers)
        answers.flush()


def in_a_thread(make: Callable[[], Made]) -> Future[Made]:
    """What `make` returns or raises. Its thread is a daemon: whoever gives up meanwhile does not wait for it."""
    made: Future[Made] = Future()

    def work() -> None:
        try:
            made.set_result(make())
        # Not handled here: carried to the threads that ask.
        except BaseException as error:  # noqa: BLE001
            made.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return made


def answered(pid: int, deadline_s: float, ready: Callable[[], bool]) -> bool:
    """Whether a process becomes ready within seconds of its processor time. `ready` waits a little itself."""
    began, had = time.monotonic(), processor_s(pid)
    while not ready():
        used, waited = processor_s(pid) - had, time.monotonic() - began
        if used >= deadline_s or waited >= PATIENCE * deadline_s:
            return False
    return True


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has used; of one that is gone, seconds by the clock."""
    import psutil  # here: children behind walls import this module too, and ask nothing of the kind

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return time.monotonic()
    return times.user + times.system
