"""Overwrites SM state that survives from one kernel to the next: shared memory, registers, local memory.

Kernels in PTX, which the driver compiles: only PTX reaches the shared memory reserved by the driver. Each fills the
whole GPU: a launch has exactly as many blocks as fit at once, and no block ends before all have started, so that every
SM and every warp slot is reached.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from cuda.bindings import driver as cuda  # pyright: ignore[reportMissingImports]

from evo_kernel.fitness.runners.cuda_driver import current_stream, device_limits, ok
from evo_kernel.fitness.runners.launch_limits import CudaFault
from evo_kernel.fitness.runners.sm_state_ptx import (
    LOCAL_THREADS,
    SM_THREADS,
    WARP_THREADS,
    local_text,
    sm_text,
    warps_text,
)

_BLACKWELL = 100  # from here on the reserved shared memory holds tensor memory management data
_LOCAL_STEP = 256  # bytes: a kernel is compiled for each multiple


@dataclass(frozen=True)
class _Ready:
    """A kernel with everything that its launches need, prepared in advance: it runs before every candidate launch."""

    function: Any
    blocks: int
    config: Any
    table: Any  # addresses of the arguments
    arguments: Any  # kept alive


class Clearing:
    """The loaded kernels on torch's current GPU; launched on torch's current stream, without waiting."""

    def __init__(self) -> None:
        limits = device_limits()
        self._sms, self._shared_bytes = limits.sm_count, limits.shared_bytes
        reserved = limits.reserved_shared_bytes if limits.arch < _BLACKWELL else 0
        self._arrived = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._all = ctypes.c_uint64(0)
        function = _loaded(warps_text(), "clear_warps")
        blocks = self._sms * _blocks_per_sm(function, WARP_THREADS, 0)
        self._warps = self._ready(function, blocks, WARP_THREADS, 0, ctypes.c_uint32(1))
        function = _loaded(sm_text(), "clear_sm")
        size = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        ok(cuda.cuFuncSetAttribute(function, size, self._shared_bytes))
        if (fit := _blocks_per_sm(function, SM_THREADS, self._shared_bytes)) != 1:
            raise CudaFault(f"{fit} blocks with all shared memory fit on an SM, where one should")
        more = (ctypes.c_uint32(reserved), ctypes.c_uint32(self._shared_bytes))
        self._sm = self._ready(function, self._sms, SM_THREADS, self._shared_bytes, *more)
        self._locals: dict[int, _Ready] = {}

    def sms(self) -> None:
        """Overwrite the shared memory of every SM, the driver's part included, and its registers of all kinds."""
        self._launch(self._warps)
        self._launch(self._sm)

    def local(self, size: int) -> None:
        """Overwrite `size` bytes of local memory of every thread that fits on the GPU."""
        size = -(-size // _LOCAL_STEP) * _LOCAL_STEP
        if size not in self._locals:
            function = _loaded(local_text(size), "clear_local")
            blocks = self._sms * _blocks_per_sm(function, LOCAL_THREADS, 0)
            self._locals[size] = self._ready(function, blocks, LOCAL_THREADS, 0)
        self._launch(self._locals[size])

    def _ready(self, function: Any, blocks: int, threads: int, shared_bytes: int, *more: ctypes.c_uint32) -> _Ready:
        arguments = (ctypes.c_uint64(self._arrived.data_ptr()), self._all, *more)
        table = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        attribute = cuda.CUlaunchAttribute()
        attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE  # all blocks at once, or none
        attribute.value.cooperative = 1
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        config.attrs, config.numAttrs = [attribute], 1
        return _Ready(function, blocks, config, table, arguments)

    def _launch(self, ready: _Ready) -> None:
        self._all.value += ready.blocks
        ready.config.hStream = current_stream()
        try:
            ok(cuda.cuLaunchKernelEx(ready.config, ready.function, ctypes.addressof(ready.table), 0))
        except CudaFault:
            self._all.value -= ready.blocks  # or the next kernel would wait for them without end
            raise


def _loaded(text: str, name: str) -> Any:
    """Load a kernel from PTX text. Its module lives as long as the context."""
    module = ok(cuda.cuModuleLoadData(text.encode() + b"\0"))
    return ok(cuda.cuModuleGetFunction(module, name.encode()))


def _blocks_per_sm(function: Any, threads: int, shared_bytes: int) -> int:
    return int(ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared_bytes)))
