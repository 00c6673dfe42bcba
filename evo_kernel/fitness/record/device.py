"""Emulates the target GPU's properties in the recorder's child: Triton's driver and `torch.cuda` answer from a table.

Installed before the candidate is imported. The child itself has no GPU.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from evo_kernel.fitness.costmodel.targets import Target, target_for


def target_driver(target: Target, device: torch.device | None = None) -> Any:
    """Replaces Triton's active driver; reports the target and its properties only, on a GPU or another device."""
    properties = {
        "max_shared_mem": target.shared_bytes_per_block,
        "max_num_regs": target.registers_per_sm,
        "multiprocessor_count": target.sm_count,
        "warpSize": 32,
        "sm_clock_rate": int(target.clock_mhz * 1000),
    }
    return types.SimpleNamespace(
        utils=types.SimpleNamespace(get_device_properties=lambda device=0: properties),
        get_current_target=lambda: GPUTarget("cuda", target.arch, 32),
        get_current_device=lambda: 0,
        set_current_device=lambda device: None,
        get_current_stream=lambda device=None: 0,
        get_active_torch_device=lambda: device or torch.device("cuda", 0),
        get_device_interface=lambda: torch.cuda,
        is_active=lambda: True,
    )


def _unsupported(what: str) -> Any:
    """Replaces a class of torch.cuda that plans cannot represent; calling it raises RecordingRefused."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        from evo_kernel.fitness.record.tracing import RecordingRefused

        raise RecordingRefused(
            f"run makes {what}: a plan holds launches in one order, and the judge captures and times them"
        )

    return refuse


def impersonate(arch: int) -> None:
    """Make torch and Triton in this process answer as a machine with one GPU of capability `arch`."""
    target = target_for(arch)
    triton.runtime.driver.set_active(target_driver(target))
    properties = types.SimpleNamespace(
        name=target.name,
        major=target.arch // 10,
        minor=target.arch % 10,
        multi_processor_count=target.sm_count,
        total_memory=target.memory_bytes,
        L2_cache_size=target.l2_bytes,
        warp_size=32,
        max_threads_per_multi_processor=target.threads_per_sm,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=target.shared_bytes_per_block,
        shared_memory_per_multiprocessor=target.shared_bytes_per_sm,
        regs_per_multiprocessor=target.registers_per_sm,
    )
    # Plans have one order and no streams, so every stream is this one.
    stream = types.SimpleNamespace(cuda_stream=0, device=torch.device("cuda", 0), synchronize=lambda: None)
    answers: dict[str, Any] = {
        "CUDAGraph": _unsupported("a CUDA graph"),
        "Event": _unsupported("a CUDA event"),
        "Stream": _unsupported("a CUDA stream"),
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: target.name,
        "get_device_capability": lambda device=None: (target.arch // 10, target.arch % 10),
        "get_device_properties": lambda device=None: properties,
        "synchronize": lambda device=None: None,
        "is_current_stream_capturing": lambda: False,
        "device": lambda device=None: contextlib.nullcontext(),
        "device_of": lambda tensor=None: contextlib.nullcontext(),
        "is_bf16_supported": lambda including_emulation=True: target.arch >= 80,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
