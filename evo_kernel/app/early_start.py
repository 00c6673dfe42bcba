"""Starts the judge's processes before this one imports torch, so that the first verdict comes sooner."""

from __future__ import annotations

import os
from pathlib import Path

from evo_kernel.fitness.runners import process
from evo_kernel.fitness.runners.nvml import Nvml
from evo_kernel.fitness.sandbox import preloaded

_BUILTIN = Path(__file__).parents[1] / "tasks" / "builtin"  # what loads tasks imports torch


def begin(task: str | None, device: str | None) -> None:
    """Start the process that zygotes come of and, where a GPU will judge, the one that has it. `task`: as it was typed.

    What turns out not to be wanted ends with this process.
    """
    preloaded.start()
    has_gpu = device != "cpu" and os.environ.get("CUDA_VISIBLE_DEVICES") != "" and Nvml().arch
    if has_gpu and task is not None and (file := _file(task)) is not None:
        process.load_ahead(str(file))


def _file(task: str) -> Path | None:
    """As `Task.spec` has it; None of a benchmark's problem, and of what is no task."""
    if (builtin := _BUILTIN / task / "task.py").is_file():
        return builtin.absolute()
    path = Path(task).expanduser()
    path = path / "task.py" if path.is_dir() else path
    return path.resolve() if path.is_file() else None
