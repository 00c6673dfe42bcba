"""Called functions whose reference is made of Triton kernels (TritonBench G): on a CPU their IR is executed.

A child process does it, one for all problems, started when it is first needed: it may crash or hang, and in it every
launch of Triton goes to the judge's executor. On a GPU the reference runs in this process, as its harness runs it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from evo_kernel.errors import TaskError
from evo_kernel.owner import end_with_owner
from evo_kernel.tasks.calls import Called
from evo_kernel.tasks.forms import Returned
from evo_kernel.tasks.task import describe

DEADLINE_S = 60.0
"""Of processor time for one request: a program takes milliseconds, and some tests launch a hundred thousand."""
CHILD = "evo_kernel.fitness.ir.trusted"
"""The module of the child, which calls `serve`: by name, for the executor is the judge's."""
PATIENCE = 5.0
"""How many times a deadline may pass by the clock: other processes may have the processors."""


class Interpreted(Called):
    """A problem whose functions launch Triton kernels."""

    def skips(self, device: str) -> bool:
        return device == "cpu"

    def effects(self, values: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        return self._ask("effects", list(values)) if values[0].device.type == "cpu" else super().effects(values)

    def returned(self, values: Sequence[torch.Tensor]) -> Returned:
        return self._ask("returned", list(values)) if values[0].device.type == "cpu" else super().returned(values)

    def reference(self) -> Callable[..., Any]:
        plain = super().reference()

        def reference(*values: Any) -> Any:
            if any(isinstance(value, FakeTensor) or value.device.type == "meta" for value in values):
                raise TaskError(f"{self.path}: its Triton kernels cannot be traced; the task's SEED is where to start.")
            if values[0].device.type != "cpu":
                return plain(*values)
            return self._ask("reference", [value.detach() for value in values])

        reference.__signature__ = plain.__signature__  # pyright: ignore[reportFunctionMemberAccess]
        reference.compiled_baseline = False  # pyright: ignore[reportFunctionMemberAccess]
        return reference

    def _ask(self, what: str, *arguments: Any) -> Any:
        with _disable_current_modes():
            try:
                return _INTERPRETER.ask((self.made_by, what, arguments))
            except _Gone as gone:
                raise TaskError(f"{self.path}: {gone}") from gone


class _Gone(Exception):
    """The child does not answer any more, and why."""


class _Interpreter:
    """The executing process, seen from here: started when first asked, and again when it was lost. Thread-safe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # a forked process starts its own
        self._lock = threading.Lock()

    def ask(self, request: Any) -> Any:
        """Its answer. What the problem's own code raised is a TaskError; raises _Gone when there is no answer."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # reading the answer says it
                pickle.dump(request, process.stdin)
                process.stdin.flush()
            waiting = selectors.DefaultSelector()
            waiting.register(process.stdout, selectors.EVENT_READ)
            if not answered(process.pid, DEADLINE_S, lambda: bool(waiting.select(0.5))):
                self._end()
                raise _Gone(f"its kernels took more than {DEADLINE_S:g} s of a processor. Check it on a GPU.")
            try:
                with warnings.catch_warnings(action="ignore"):  # of torch, about how its own trees are pickled
                    fine, value = pickle.load(process.stdout)  # our own child wrote it
            except (EOFError, pickle.UnpicklingError) as error:
                self._end()
                raise _Gone("the process that executes its kernels ended. Check it on a GPU.") from error
        if not fine:
            raise TaskError(value)
        return value

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            command = [sys.executable, "-P", "-m", CHILD]
            environment = os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
            self._owner = os.getpid()
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


_INTERPRETER = _Interpreter()


def answered(pid: int, deadline_s: float, ready: Callable[[], bool]) -> bool:
    """Whether a process becomes ready within seconds of its processor time. `ready` waits a little itself."""
    began, had = time.monotonic(), processor_s(pid)
    while not ready():
        used, waited = processor_s(pid) - had, time.monotonic() - began
        if used >= deadline_s or waited >= PATIENCE * deadline_s:
            return False
    return True


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has used; where the system does not say, seconds by the clock."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve() -> None:
    """The child: a problem, then requests, until nobody asks any more. Prints of the problem's code go nowhere."""
    end_with_owner()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    torch.set_num_threads(1)
    requests = sys.stdin.buffer
    problems: dict[str, _Here] = {}
    while True:
        try:
            made_by, what, arguments = pickle.load(requests)  # our own parent wrote it
        except EOFError:
            return
        key = repr(made_by)
        try:
            problem = problems[key] = problems.get(key) or _Here(**made_by)
            answer = (True, getattr(problem, f"do_{what}")(*arguments))
        except (Exception, SystemExit) as error:  # noqa: BLE001  the benchmark's own code may raise anything
            told = str(error) if isinstance(error, TaskError) else f"{made_by['path']}: {describe(error)}."
            answer = (False, told)
        pickle.dump(answer, answers)
        answers.flush()


class _Here(Interpreted):
    """The problem inside the child: what it is asked for, it does itself."""

    def do_effects(self, values: list[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        made, changed = Called.effects(self, values)
        return [part.clone() for part in made], changed

    def do_returned(self, values: list[torch.Tensor]) -> Returned:
        return Called.returned(self, values)

    def do_reference(self, values: list[torch.Tensor]) -> Any:
        made = Called.reference(self)(*(self.copied(value) for value in values))
        return made.clone() if isinstance(made, torch.Tensor) else tuple(part.clone() for part in made)
