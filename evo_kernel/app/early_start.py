"""Starts the judge's processes before this one imports torch, so that the first verdict comes sooner."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from evo_kernel.fitness.gpus import Nvml
from evo_kernel.fitness.runners import process
from evo_kernel.fitness.sandbox import preloaded
from evo_kernel.processes import keep_memory
from evo_kernel.tasks.builtin import builtin_names


def begin(task: str | None, device: str | None, *, now: bool = True) -> None:
    """Start the process that zygotes come of and, where a GPU will judge, the one that has it. `task`: as it was typed.

    What turns out not to be wanted ends with this process. `now`: nobody else uses the GPU.
    """
    gc.set_threshold(50_000)  # importing torch makes a million objects, which stay
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads share the cores with those processes
    preloaded.start()
    has_gpu = device != "cpu" and os.environ.get("CUDA_VISIBLE_DEVICES") != "" and Nvml().arch
    if has_gpu and task is not None and (spec := _spec(task)) is not None:
        ahead = process.load_ahead(process.usual_command(spec), now=now)
        if not now:
            ahead.load()  # it has the time
    if not has_gpu:  # references and outputs are held here
        keep_memory()


def _spec(task: str) -> str | None:
    """As `Task.spec` has it; None of what is no task. A benchmark's problem is taken as it was typed."""
    if task in builtin_names():
        return task
    path = Path(task).expanduser()
    path = path / "task.py" if path.is_dir() else path
    return str(path.resolve()) if path.is_file() else task if ":" in task else None
