"""Launches CUDA C++ directly on a GPU when a source that uses `evo_kernel.cuda` runs outside a recording.

The judge does not use it, and exported packages hold machine code.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

import torch
from cuda.bindings import driver  # pyright: ignore[reportMissingImports]

from evo_kernel import cuda
from evo_kernel.fitness.compile import nvrtc
from evo_kernel.fitness.plan.launch_plan import Scalar
from evo_kernel.fitness.runners.cuda_driver import ok
from evo_kernel.fitness.runners.parameters import scalar


def launch(call: cuda.CudaLaunch) -> None:
    """Compile once, then launch on torch's current stream. Raises CudaTextError, PlanFault, CudaFault."""
    kernel = call.kernel
    arch = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    function = _function(kernel.code, kernel.name, kernel.options, arch, torch.cuda.current_device())
    if call.shared_bytes > 48 << 10:
        size = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        ok(driver.cuFuncSetAttribute(function, size, call.shared_bytes))
    values = [_packed(kind, value) for (_, kind), value in zip(kernel.parameters, call.args, strict=True)]
    holders = [ctypes.create_string_buffer(value, len(value)) for value in values]
    table = (ctypes.c_void_p * max(1, len(holders)))(*(ctypes.addressof(holder) for holder in holders))
    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    ok(
        driver.cuLaunchKernel(
            function, *call.grid, *call.block, call.shared_bytes, stream, ctypes.addressof(table), 0
        )
    )  # fmt: skip


@functools.cache
def _function(code: str, name: str, options: tuple[str, ...], arch: int, device: int) -> Any:
    del device  # a module belongs to its device's context
    torch.empty(1, device="cuda")
    compiled = nvrtc.load().compile(code, name, arch, options)
    module = ok(driver.cuModuleLoadData(compiled.cubin))
    return ok(driver.cuModuleGetFunction(module, compiled.symbol.encode()))


def _packed(kind: str, value: Any) -> bytes:
    if kind.startswith("*"):
        return struct.pack("<Q", value.data_ptr())
    return scalar(kind, Scalar(type=kind, value=value))
