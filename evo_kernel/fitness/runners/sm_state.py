"""Overwrites SM state that survives from one kernel to the next: shared memory, registers, local memory.

Two kernels in PTX, which the driver compiles: only PTX determines which registers are written and reaches the shared
memory reserved by the driver. Each fills the whole GPU: a launch has exactly as many blocks as fit at once, and no
block ends before all have started, so that every SM and every warp slot is reached.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from cuda.bindings import driver as cuda  # pyright: ignore[reportMissingImports]

from evo_kernel.fitness.runners.cuda_driver import device_limits, ok
from evo_kernel.fitness.runners.faults import CudaFault

_SM_THREADS, _LOCAL_THREADS = 1024, 512  # per block of either kernel
_VECTORS = 14  # of four registers: 62 of the 64 that a thread may use; one more would spill
_BLACKWELL = 100  # from here on the reserved shared memory holds tensor memory management data
_LOCAL_STEP = 256  # bytes: a kernel is compiled for each multiple

_HEAD = """
.version 6.4
.target sm_75
.address_size 64
"""
_MEET = """
    bar.sync 0;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %go, %thread, 0;
    @%go bra met;
    ld.param.u64 %arrived, [arrived];
    ld.param.u64 %all, [all];
    atom.global.add.u64 %seen, [%arrived], 1;
wait:
    ld.volatile.global.u64 %seen, [%arrived];
    setp.lt.u64 %go, %seen, %all;
    @%go bra wait;
met:
    bar.sync 0;
    ret;
"""
"""End of both kernels: a block waits until so many blocks have arrived since the counter was created."""


def _sm_text() -> str:
    """PTX that fills shared memory, then keeps all registers live at once.

    Volatile accesses keep their order, so all registers are loaded before the first is stored.
    """
    vectors = [", ".join(f"%v{4 * n + lane}" for lane in range(4)) for n in range(_VECTORS)]
    loads = "".join(f"    ld.volatile.shared.v4.u32 {{{vector}}}, [%own];\n" for vector in vectors)
    stores = "".join(f"    st.volatile.shared.v4.u32 [%own], {{{vector}}};\n" for vector in vectors)
    return f"""{_HEAD}
.extern .shared .align 16 .b8 dynamic[];
.visible .entry clear_sm(.param .u64 arrived, .param .u64 all, .param .u32 reserved, .param .u32 bytes)
.maxntid {_SM_THREADS}, 1, 1
{{
    .reg .pred %go;
    .reg .b32 %thread, %own, %at, %end, %mark, %reserved, %v<{4 * _VECTORS}>;
    .reg .b64 %arrived, %all, %seen;
    mov.u32 %thread, %tid.x;
    shl.b32 %own, %thread, 4;
    mov.u32 %end, dynamic;
    add.u32 %own, %own, %end;
    ld.param.u32 %mark, [bytes];
    add.u32 %end, %end, %mark;
    ld.param.u32 %reserved, [reserved];
    sub.u32 %at, %own, %reserved;
    mov.u32 %mark, 0xffffffff;
fill:
    st.volatile.shared.v4.u32 [%at], {{%mark, %mark, %mark, %mark}};
    add.u32 %at, %at, {16 * _SM_THREADS};
    setp.lt.u32 %go, %at, %end;
    @%go bra fill;
    bar.sync 0;
{loads}{stores}{_MEET}}}
"""


def _local_text(size: int) -> str:
    return f"""{_HEAD}
.visible .entry clear_local(.param .u64 arrived, .param .u64 all)
.maxntid {_LOCAL_THREADS}, 1, 1
{{
    .local .align 16 .b8 frame[{size}];
    .reg .pred %go;
    .reg .b32 %thread, %mark;
    .reg .b64 %arrived, %all, %seen, %at, %end;
    mov.u64 %at, frame;
    cvta.local.u64 %at, %at;
    add.u64 %end, %at, {size};
    mov.u32 %mark, 0xffffffff;
fill:
    st.volatile.v4.u32 [%at], {{%mark, %mark, %mark, %mark}};
    add.u64 %at, %at, 16;
    setp.lt.u64 %go, %at, %end;
    @%go bra fill;
{_MEET}}}
"""


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
        function = _loaded(_sm_text(), "clear_sm")
        size = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        ok(cuda.cuFuncSetAttribute(function, size, self._shared_bytes))
        if (fit := _blocks_per_sm(function, _SM_THREADS, self._shared_bytes)) != 1:
            raise CudaFault(f"{fit} blocks with all shared memory fit on an SM, where one should")
        more = (ctypes.c_uint32(reserved), ctypes.c_uint32(self._shared_bytes))
        self._sm = self._ready(function, self._sms, _SM_THREADS, self._shared_bytes, *more)
        self._locals: dict[int, _Ready] = {}

    def sms(self) -> None:
        """Overwrite the shared memory of every SM, the driver's part included, and its registers."""
        self._launch(self._sm)

    def local(self, size: int) -> None:
        """Overwrite `size` bytes of local memory of every thread that fits on the GPU."""
        size = -(-size // _LOCAL_STEP) * _LOCAL_STEP
        if size not in self._locals:
            function = _loaded(_local_text(size), "clear_local")
            blocks = self._sms * _blocks_per_sm(function, _LOCAL_THREADS, 0)
            self._locals[size] = self._ready(function, blocks, _LOCAL_THREADS, 0)
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
        ready.config.hStream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
        ok(cuda.cuLaunchKernelEx(ready.config, ready.function, ctypes.addressof(ready.table), 0))


def _loaded(text: str, name: str) -> Any:
    """Load a kernel from PTX text. Its module lives as long as the context."""
    module = ok(cuda.cuModuleLoadData(text.encode() + b"\0"))
    return ok(cuda.cuModuleGetFunction(module, name.encode()))


def _blocks_per_sm(function: Any, threads: int, shared_bytes: int) -> int:
    return int(ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared_bytes)))
