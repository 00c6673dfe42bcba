"""Lanes of a suite: GPUs and cores for searches side by side, and commands that run on them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread

from evo_kernel import processes
from evo_kernel.errors import UserError
from evo_kernel.fitness.gpus import usable_cores

INTERRUPTED_S = 60.0
"""What is under way when a suite is interrupted may take so long to end; then it is killed, and resumed next time."""

PROGRAM = ("-P", "-m", "evo_kernel.cli.waiting")


@dataclass(frozen=True)
class Lane:
    """The GPU and the cores of searches that follow each other."""

    gpu: str = ""  # as CUDA_VISIBLE_DEVICES names it; empty: whatever the machine has
    cores: tuple[int, ...] = ()  # empty: all

    def environment(self) -> dict[str, str]:
        return dict(os.environ) | ({"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {})

    def enter(self) -> None:
        """The cores of this thread become the lane's; a child inherits them."""
        if self.cores:
            os.sched_setaffinity(0, self.cores)


def lanes_of(gpus: str | None, device: str) -> list[Lane]:
    """As many as `--gpus` says, the machine's cores divided among them. Raises UserError."""
    if gpus is None:
        return [Lane()]
    import torch

    present = torch.cuda.device_count() if device != "cpu" and torch.version.cuda is not None else 0
    if device == "cuda" and not present:
        raise UserError("no CUDA GPU is visible here. Use --device cpu; `evo-kernel doctor` says more.")
    usable = usable_cores()
    most = present or max(1, usable // 2)  # without a GPU, a search keeps about two cores busy
    count = most if gpus == "all" else int(gpus) if gpus.isdecimal() else 0
    if not 1 <= count <= max(present, usable):
        raise UserError(f"--gpus {gpus}: give a number from 1 to {max(present, usable)}, or all")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = (visible.split(",") if visible else [str(number) for number in range(present)]) if present else [""]
    named = [names[number % len(names)] for number in range(count)]
    cores, each = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [], usable // count
    return [
        Lane(name, tuple(cores[number * len(cores) // count :][: max(1, each)])) for number, name in enumerate(named)
    ]


@dataclass(frozen=True)
class OrderEnd:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str
    late: bool = False  # ended at its deadline
    after_s: float = 0.0


def run_logged(
    command: Sequence[str],
    lane: Lane,
    log: Path,
    deadline_s: float,
    halt: Event,
    grace_s: float = INTERRUPTED_S,
) -> OrderEnd:
    """Run a command on a lane until it ends, the deadline, or the halt. Its output goes to `log`.out and `log`.err.

    `grace_s` lie between SIGTERM and SIGKILL. For a thread of its own: its cores become the lane's.
    """
    lane.enter()
    files = _logs(log)
    logged = ["/bin/sh", "-c", 'exec "$@" > "$0.out" 2> "$0.err"', str(log), *command]
    began = time.monotonic()
    ended = processes.run(
        logged, deadline_s, lambda chunk: None, lane.environment(), enough=halt.is_set, grace_s=grace_s
    )
    return _end(ended, files, began)


class EarlySearch:
    """A process of a lane that has imported what a search needs, or is about to, and waits for its command.

    It ends by `run`, by `close`, or with this process. `likely`: the task that is expected.
    """

    def __init__(self, lane: Lane, device: str, likely: str) -> None:
        theirs, self._orders = os.pipe()
        self._said, self._ended = bytearray(), Future[processes.Ended]()
        self._halt, self._until = Event(), math.inf
        program = [sys.executable, *PROGRAM, str(theirs), device, likely]
        Thread(target=self._supervise, args=(program, lane, theirs), daemon=True).start()

    def _supervise(self, program: Sequence[str], lane: Lane, theirs: int) -> None:
        lane.enter()
        try:
            ended = processes.run(
                program, math.inf, self._said.extend, lane.environment(), enough=self._enough,
                grace_s=INTERRUPTED_S, passed=theirs,
            )  # fmt: skip
            self._ended.set_result(ended)
        except OSError as error:
            self._ended.set_exception(error)

    def _enough(self) -> bool:
        return self._halt.is_set() or time.monotonic() >= self._until

    def alive(self) -> bool:
        looking = select.poll()
        looking.register(self._orders, 0)
        return not looking.poll(0)  # an error is what a pipe that nobody reads has

    def run(
        self,
        words: Sequence[str],
        log: Path,
        deadline_s: float,
        halt: Event,
        solution: Mapping[str, str] | None = None,
    ) -> OrderEnd:
        """`evo-kernel` with these words, as `run_logged` has it; then `harnesses.write_best` with these arguments."""
        files = _logs(log)
        order = {"words": list(words), "output": [str(file.absolute()) for file in files], "solution": solution}
        began = time.monotonic()
        self._halt, self._until = halt, began + deadline_s
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._orders, "w") as orders:  # else it tells how it ended
            orders.write(json.dumps(order) + "\n")
        ended = self._ended.result()
        if ended.how == "stopped" and not halt.is_set():
            ended = replace(ended, how="deadline")
        told = _end(ended, files, began)
        return told if told.err else replace(told, err=self._said.decode(errors="replace"))

    def close(self) -> None:
        """End it, where it still waits."""
        self._until = time.monotonic()
        os.close(self._orders)
        self._ended.result()


def _logs(log: Path) -> list[Path]:
    """The files of a command's output and errors, empty."""
    log.parent.mkdir(parents=True, exist_ok=True)
    files = [log.with_name(log.name + ending) for ending in (".out", ".err")]
    for file in files:
        file.write_bytes(b"")
    return files


def _end(ended: processes.Ended, files: Sequence[Path], began: float) -> OrderEnd:
    out, err = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    return OrderEnd(ended.code, out, err, ended.how == "deadline", time.monotonic() - began)
