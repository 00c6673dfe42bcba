"""Workers of a suite, one a GPU: warm processes that fork for each search, and end all that it started with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo_kernel.app.signals import ending_twice
from evo_kernel.errors import UserError
from evo_kernel.fitness.gpus import usable_cores
from evo_kernel.processes import kill_tree

INTERRUPTED_S = 60.0
"""What is under way when a suite is interrupted may take so long to end; then it is killed, and resumed next time."""
INTERRUPT, KILL = b"interrupt\n", b"kill\n"


@dataclass(frozen=True)
class Lane:
    """The GPU and the cores of one worker."""

    gpu: str = ""  # as CUDA_VISIBLE_DEVICES names it; empty: whatever the machine has
    cores: tuple[int, ...] = ()  # empty: all

    def environment(self) -> dict[str, str]:
        return dict(os.environ) | ({"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {})


def lanes_of(gpus: str | None, device: str) -> list[Lane]:
    """As many as `--gpus` says, the machine's cores divided among them. Raises UserError."""
    if gpus is None:
        return [Lane()]
    import torch

    from evo_kernel.fitness.runners.choose import gpu_count

    present = torch.cuda.device_count() if device != "cpu" and torch.version.cuda is not None else 0
    if device == "cuda" and not present:
        raise UserError("no CUDA GPU is visible here. Use --device cpu; `evo-kernel doctor` says more.")
    usable = usable_cores()
    if present:
        count = gpu_count(gpus, present)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        named = (visible.split(",") if visible else [str(number) for number in range(present)])[:count]
    else:  # a search keeps about two cores busy
        count = max(1, usable // 2) if gpus == "all" else int(gpus) if gpus.isdecimal() else 0
        if not 1 <= count <= usable:
            raise UserError(f"--gpus {gpus}: without a GPU, give a number from 1 to {usable} (cores), or all")
        named = [""] * count
    cores, each = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [], usable // count
    return [
        Lane(name, tuple(cores[number * len(cores) // count :][: max(1, each)])) for number, name in enumerate(named)
    ]


class Halt:
    """How far a suite is to be stopped: not, after what is under way, or at once. Set by a signal's handler."""

    def __init__(self) -> None:
        self.asked = threading.Event()  # start nothing new, and end what is under way as its ^C does
        self.now = threading.Event()  # kill

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGINT or SIGTERM: the first ends what is under way and keeps it, a second kills it."""
        with ending_twice(lambda name: self.asked.set(), lambda name: self.now.set()):
            yield


@dataclass(frozen=True)
class OrderEnd:
    """How an order ended."""

    code: int
    out: str
    err: str
    late: bool = False  # killed at its deadline
    after_s: float = 0.0


class WarmProcess:
    """A process that loads what searches need once (worker.py), and forks for each order.

    It ends with this process."""

    def __init__(self, lane: Lane) -> None:
        command = [sys.executable, "-P", "-m", "evo_kernel.app.suite.worker", ",".join(map(str, lane.cores))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=lane.environment()
        )

    def order(
        self, what: dict[str, Any], log: Path, deadline_s: float, halt: Halt, interrupted_s: float = INTERRUPTED_S
    ) -> OrderEnd:
        """Have it done, and wait for the end. What it says goes to `log`.out and `log`.err.

        At the deadline it is killed; when the suite is to halt it is asked to end as by ^C, and killed after
        `interrupted_s`.
        """
        out, err = (log.with_name(log.name + ending) for ending in (".out", ".err"))
        log.parent.mkdir(parents=True, exist_ok=True)
        self._tell(json.dumps(what | {"out": str(out), "err": str(err)}).encode() + b"\n")
        began = time.monotonic()
        end, halted, killed = began + deadline_s, False, False
        answer = self._process.stdout
        assert answer is not None
        while not select.select([answer], [], [], 0.05)[0]:
            now = time.monotonic()
            if halt.asked.is_set() and not halted:
                halted, end = True, min(end, now + interrupted_s)
                self._tell(INTERRUPT)
            if not killed and (halt.now.is_set() or now >= end):
                killed = True
                self._tell(KILL)
        line, took = answer.readline(), time.monotonic() - began
        code = int(line) if line else self._process.wait()
        return OrderEnd(code, _text(out), _text(err), killed and not halted, took)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Kill it and all that it started."""
        if self.alive:
            kill_tree(self._process.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: so has its answer
            self._process.stdin.write(line)
            self._process.stdin.flush()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
