"""Selects the runner: CUDA with a GPU; without one, the CPU runner with executor and time model."""

from __future__ import annotations

import torch

from evo_kernel.errors import UserError
from evo_kernel.fitness.runners.base import Runner
from evo_kernel.fitness.runners.cpu_runner import CpuRunner
from evo_kernel.fitness.runners.nvml import Nvml
from evo_kernel.tasks.task import Task

MODELED_ARCH = 90


def open_runner(task: Task, device: str, deadline_s: float, gpus: str = "1") -> Runner:
    """A runner for `device` (auto, cpu, cuda) on `gpus` GPUs (a number, or all). Raises UserError."""
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"unknown device {device!r}: use auto, cpu or cuda")
    present = _gpu_present()
    if device == "cuda" and not present:
        raise UserError(
            "no CUDA GPU is visible here. Use --device cpu for modeled scores; run `evo-kernel doctor` for details."
        )
    if device == "cpu" or not present:
        return CpuRunner(task, MODELED_ARCH, deadline_s)
    from evo_kernel.fitness.runners.cuda_runner import CudaRunner

    count = gpu_count(gpus, torch.cuda.device_count())
    if count == 1:
        return CudaRunner(task, 0, deadline_s)
    from evo_kernel.fitness.runners.pool import RunnerPool

    return RunnerPool([CudaRunner(task, gpu, deadline_s) for gpu in range(count)])


def arch_of(device: str) -> int:
    """Compute capability × 10 of the GPU for `device`, or of the modeled one. Creates no CUDA context."""
    return MODELED_ARCH if device == "cpu" or not _gpu_present() else Nvml().arch or MODELED_ARCH


def gpu_count(requested: str, present: int) -> int:
    """The number of GPUs that `--gpus` requests: a number, or all. Raises UserError."""
    if requested == "all":
        return present
    if not requested.isdecimal() or not 1 <= int(requested) <= present:
        raise UserError(f"--gpus {requested}: give a number from 1 to {present}, or all")
    return int(requested)


def _gpu_present() -> bool:
    """Whether the driver sees a GPU. Uses NVML, so that this process creates no CUDA context."""
    return torch.version.cuda is not None and torch.cuda.device_count() > 0
