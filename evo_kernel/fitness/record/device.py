"""Emulates the target GPU's properties in the recorder's child: Triton's driver and `torch.cuda` answer from a table.

Installed before the candidate is imported. The child itself has no GPU.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import types
from collections.abc import Callable
from multiprocessing import synchronize
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


class _NoContext(contextlib.nullcontext[None]):
    """Replaces context managers of torch.cuda that choose a device: there is one."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        super().__init__()


def _unsupported(name: str, what: str) -> type:
    """Replaces a class of torch.cuda that plans cannot represent; making an instance raises RecordingRefused.

    A class, since packages name it where they are imported: in annotations (`Stream | None`), as a base, in isinstance.
    """

    def refuse(_cls: type, *_args: Any, **_options: Any) -> Any:
        from evo_kernel.fitness.record.tracing import RecordingRefused

        raise RecordingRefused(
            f"run makes {what}: a plan holds launches in one order, and the judge captures and times them"
        )

    return type(name, (), {"__new__": refuse})


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
    stream_class = _unsupported("Stream", "a CUDA stream")
    stream: Any = object.__new__(stream_class)
    vars(stream).update(cuda_stream=0, device=torch.device("cuda", 0), synchronize=lambda: None)
    answers: dict[str, Any] = {
        "CUDAGraph": _unsupported("CUDAGraph", "a CUDA graph"),
        "Event": _unsupported("Event", "a CUDA event"),
        "Stream": stream_class,
        "stream": _NoContext,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: target.name,
        "get_device_capability": lambda device=None: (target.arch // 10, target.arch % 10),
        "get_device_properties": lambda device=None: properties,
        "is_current_stream_capturing": lambda: False,
        "device": _NoContext,
        "device_of": _NoContext,
        "is_bf16_supported": lambda including_emulation=True: target.arch >= 80,
    }
    answers |= {name: _always(None) for name in _WITHOUT_EFFECT} | {name: _always(0) for name in _NONE_IN_USE}
    answers |= {
        "is_initialized": lambda: True,
        "mem_get_info": lambda device=None: (target.memory_bytes, target.memory_bytes),
        "get_arch_list": lambda: [f"sm_{target.arch}"],
        "default_generators": (torch.Generator(),),
        "get_rng_state": lambda device=None: torch.Generator().get_state(),
    }
    accelerator = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_stream": lambda device=None: stream,
        "set_device_index": _always(None),
        "synchronize": _always(None),
    }
    _set(torch.cuda, answers)
    _set(torch.accelerator, accelerator)
    ranges = ("mark", "range_push", "range_pop", "range_start", "range_end")
    _set(torch.cuda.nvtx, {name: _always(None) for name in ranges})
    _set(torch._C, {"_cuda_getCurrentRawStream": lambda device=0: 0, "_cuda_getDevice": lambda: 0})
    torch.version.cuda = torch.version.cuda or _CUDA_VERSION
    _answer_nvidia_smi(target.name)
    # Threads' locks will do, since the child cannot start a process. Those of processes are files that it may not make.
    synchronize.Lock, synchronize.RLock = _for_threads(threading.Lock), _for_threads(threading.RLock)


def _for_threads(make: Callable[[], Any]) -> Any:
    return lambda **_context: make()


_CUDA_VERSION = "12.8"
_WITHOUT_EFFECT = (
    "_lazy_init", "empty_cache", "init", "ipc_collect", "manual_seed", "manual_seed_all",
    "reset_accumulated_memory_stats", "reset_max_memory_allocated", "reset_peak_memory_stats", "seed", "seed_all",
    "set_device", "set_rng_state", "set_stream", "set_sync_debug_mode", "synchronize",
)  # fmt: skip
_NONE_IN_USE = (
    "initial_seed", "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved",
)  # fmt: skip


def _always(answer: int | None) -> Callable[..., int | None]:
    """A function of its own for each name: torch's compiler, which packages import, has a rule for each."""
    return lambda *_args, **_options: answer


def _set(module: Any, answers: dict[str, Any]) -> None:
    for name, answer in answers.items():
        setattr(module, name, answer)


def _answer_nvidia_smi(name: str) -> None:
    """Have `subprocess.run(["nvidia-smi", ...])` succeed: packages look for a GPU so. Other programs cannot start."""
    start = subprocess.run

    def run(args: Any, *rest: Any, **options: Any) -> Any:
        words = args.split() if isinstance(args, str) else [str(word) for word in args]
        if not words or os.path.basename(words[0]) != "nvidia-smi":
            return start(args, *rest, **options)
        text = options.get("text") or options.get("encoding") or options.get("universal_newlines")
        listing = f"{name}\n" if text else f"{name}\n".encode()
        return subprocess.CompletedProcess(args, 0, listing, listing[:0])

    subprocess.run = run
