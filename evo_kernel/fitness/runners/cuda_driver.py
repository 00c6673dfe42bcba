"""Load cubins and launch them through the CUDA driver API, on torch's current stream. Trusted process only.

cuda-bindings rather than Triton's own launcher: Triton's is generated per signature by a C compiler at run time, wants
the candidate's Python function, and has no place for the plan's own buffers; the driver API takes exactly what a plan
holds. Parameter layout of a Triton kernel: its non-constexpr parameters in order, then the pointers to global scratch
and to profile scratch (triton/backends/nvidia/driver.py, 3.6 to 3.9); the sizes are checked against the cubin's own
metadata before every first launch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from cuda.bindings import driver as cuda  # pyright: ignore[reportMissingImports]

from evo_kernel.fitness.plan import Aten, Binary, CompiledPlan, Descriptor, Fill, Launch, Pointer, Scalar, View

CANARY_BYTES = 1024
CANARY = 0xA5
POISON = 0xFF  # NaN in every floating type, -1 in signed integers


class PlanFault(Exception):
    """The plan cannot be launched as it stands: the candidate's fault, told in a sentence."""


class CudaFault(Exception):
    """A CUDA call failed. After most of these the context is lost."""


def ok(result: tuple[Any, ...]) -> Any:
    """Unpack a driver call's result. Raises CudaFault."""
    code, *values = result
    if code != cuda.CUresult.CUDA_SUCCESS:
        _, text = cuda.cuGetErrorString(code)
        raise CudaFault((text or b"unknown CUDA error").decode())
    return values[0] if len(values) == 1 else tuple(values)


class Arena:
    """The buffers of one plan on the GPU, each between two canary bands."""

    def __init__(self, plan: CompiledPlan) -> None:
        self._sizes = [buffer.bytes for buffer in plan.plan.buffers]
        starts, total = [], 0
        for size in self._sizes:
            starts.append(total + CANARY_BYTES)
            total += CANARY_BYTES + (size + 511) // 512 * 512
        self._starts, total = starts, total + CANARY_BYTES
        self._memory = torch.empty(total, dtype=torch.uint8, device="cuda")
        self._memory.fill_(CANARY)

    def bytes_of(self, buffer: int) -> torch.Tensor:
        start = self._starts[buffer]
        return self._memory[start : start + self._sizes[buffer]]

    def address(self, buffer: int) -> int:
        return self._memory.data_ptr() + self._starts[buffer]

    def tensor(self, view: View) -> torch.Tensor:
        base = _typed(self.bytes_of(view.buffer), getattr(torch, view.dtype))
        return torch.as_strided(base, view.shape, view.strides, base.storage_offset() + view.offset)

    def poison(self, plan: CompiledPlan) -> None:
        for index, buffer in enumerate(plan.plan.buffers):
            if buffer.kind == "scratch":
                self.bytes_of(index).fill_(POISON)

    def broken_canary(self) -> int | None:
        """Index of a buffer beside which something wrote; None when all bands are whole."""
        edge = 0
        for index, (start, size) in enumerate(zip(self._starts, self._sizes, strict=True)):
            if not bool((self._memory[edge:start] == CANARY).all()):
                return max(0, index - 1)
            edge = start + size
        return None if bool((self._memory[edge:] == CANARY).all()) else len(self._sizes) - 1


def _typed(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    usable = data.numel() // dtype.itemsize * dtype.itemsize
    return data[:usable].view(dtype)


@dataclass
class _Loaded:
    module: Any
    function: Any
    binary: Binary


class Launcher:
    """Modules of one plan, loaded; launches its nodes over an arena."""

    def __init__(self, plan: CompiledPlan) -> None:
        self._plan = plan
        torch.cuda.current_stream().synchronize()
        self._loaded = [_load(binary) for binary in plan.binaries]
        self._scratch = [self._scratch_for(node) for node in plan.plan.nodes]

    def _scratch_for(self, node: object) -> torch.Tensor | None:
        if not isinstance(node, Launch):
            return None
        binary = self._plan.binaries[node.kernel]
        per_block = binary.global_scratch_bytes * binary.num_ctas
        total = per_block * node.grid[0] * node.grid[1] * node.grid[2] + binary.profile_scratch_bytes
        if total > 8 << 30:
            raise PlanFault(f"the launch needs {total >> 30} GB of scratch: use a smaller grid")
        return torch.empty(max(total, 256), dtype=torch.uint8, device="cuda")

    def run(self, arena: Arena) -> None:
        """Launch every node in order on torch's current stream; returns before the GPU is done."""
        for node, scratch in zip(self._plan.plan.nodes, self._scratch, strict=True):
            if isinstance(node, Launch):
                self._launch(node, arena, scratch)
            elif isinstance(node, Fill):
                arena.tensor(node.view).fill_(node.value)
            else:
                run_aten(node, [arena.tensor(view) for view in node.views], arena)

    def _launch(self, node: Launch, arena: Arena, scratch: torch.Tensor | None) -> None:
        loaded = self._loaded[node.kernel]
        binary = loaded.binary
        kinds = [kind for _, kind in self._plan.plan.kernels[node.kernel].signature if kind != "constexpr"]
        values = [_packed(kind, arg, arena) for kind, arg in zip(kinds, node.args, strict=True)]
        pointer = struct.pack("Q", scratch.data_ptr() if scratch is not None else 0)
        values += [pointer, pointer]
        sizes = binary.parameter_bytes
        if sizes and [len(value) for value in values] != list(sizes):
            raise PlanFault(f"kernel {binary.symbol} takes parameters of {list(sizes)} bytes, not what the plan passes")
        holders = [ctypes.create_string_buffer(value, len(value)) for value in values]
        table = (ctypes.c_void_p * len(holders))(*(ctypes.addressof(holder) for holder in holders))
        stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = node.grid[0] * binary.num_ctas, node.grid[1], node.grid[2]
        config.blockDimX, config.blockDimY, config.blockDimZ = binary.threads, 1, 1
        config.sharedMemBytes, config.hStream = binary.shared_bytes, stream
        attributes = _attributes(binary)
        config.attrs, config.numAttrs = attributes, len(attributes)
        ok(cuda.cuLaunchKernelEx(config, loaded.function, ctypes.addressof(table), 0))

    def close(self) -> None:
        for loaded in self._loaded:
            ok(cuda.cuModuleUnload(loaded.module))
        self._loaded = []


def _attributes(binary: Binary) -> list[Any]:
    found = []
    if binary.num_ctas > 1:
        attribute = cuda.CUlaunchAttribute()
        attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = binary.num_ctas
        attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
        found.append(attribute)
    if binary.cooperative:
        attribute = cuda.CUlaunchAttribute()
        attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        found.append(attribute)
    return found


def _load(binary: Binary) -> _Loaded:
    torch.cuda.init()
    torch.empty(1, device="cuda")  # torch's primary context is current from here on
    try:
        module = ok(cuda.cuModuleLoadData(binary.cubin))
        function = ok(cuda.cuModuleGetFunction(module, binary.symbol.encode()))
    except CudaFault as error:
        raise PlanFault(f"the GPU does not take kernel {binary.symbol}: {error}") from error
    if binary.shared_bytes > 48 << 10:
        attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        ok(cuda.cuFuncSetAttribute(function, attribute, binary.shared_bytes))
    return _Loaded(module, function, binary)


_SCALARS = {"i1": "<?", "u1": "<?", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I",
            "i64": "<q", "u64": "<Q", "fp32": "<f", "f32": "<f", "fp64": "<d", "f64": "<d", "fp16": "<e"}  # fmt: skip


def _packed(kind: str, arg: Pointer | Scalar | Descriptor, arena: Arena) -> bytes:
    if isinstance(arg, Pointer):
        return struct.pack("<Q", arena.address(arg.buffer) + arg.offset)
    if isinstance(arg, Descriptor):
        raise PlanFault(
            "host-side tensor descriptors are not launched yet: use tl.make_tensor_descriptor in the kernel"
        )
    if arg.type == "bf16":
        return struct.pack("<f", arg.value)[2:]
    try:
        return struct.pack(_SCALARS[arg.type], arg.value)
    except struct.error as error:
        raise PlanFault(f"the value {arg.value} does not fit {kind}: {error}") from error


def run_aten(node: Aten, tensors: Sequence[torch.Tensor], arena: Arena) -> None:
    """Replay a torch operation and put its results where the plan wants them."""
    _, name, overload = node.op.split(".")
    operation = getattr(getattr(torch.ops.aten, name), overload)

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            if "view" in value:
                return tensors[value["view"]]
            if "device" in value:
                return torch.device("cuda")
            return getattr(torch, value.get("dtype") or value["torch"])
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    result = operation(*plain(node.args), **{key: plain(value) for key, value in node.kwargs.items()})
    results = result if isinstance(result, (tuple, list)) else [result]
    for view, value in zip(node.outputs, results, strict=True):
        if view is not None and isinstance(value, torch.Tensor):
            target = arena.tensor(view)
            if target.data_ptr() != value.data_ptr():
                target.copy_(value)
