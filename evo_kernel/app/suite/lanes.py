"""Lanes of a suite: GPUs and cores for searches side by side, and commands that run on them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from evo_kernel import processes
from evo_kernel.errors import UserError
from evo_kernel.fitness.gpus import usable_cores

INTERRUPTED_S = 60.0
"""What is under way when a suite is interrupted may take so long to end; then it is killed, and resumed next time."""


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
    log.parent.mkdir(parents=True, exist_ok=True)
    logged = ["/bin/sh", "-c", 'exec "$@" > "$0.out" 2> "$0.err"', str(log), *command]
    began = time.monotonic()
    ended = processes.run(
        logged, deadline_s, lambda chunk: None, lane.environment(), enough=halt.is_set, grace_s=grace_s
    )
    files = (log.with_name(log.name + ending) for ending in (".out", ".err"))
    out, err = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    return OrderEnd(ended.code, out, err, ended.how == "deadline", time.monotonic() - began)
