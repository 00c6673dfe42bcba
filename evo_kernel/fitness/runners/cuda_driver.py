"""Loads cubins and launches them through the CUDA driver API, on torch's current stream. Trusted process only.

Triton's own launcher is not used: a C compiler generates it per signature at run time, it needs the candidate's Python
function, and it cannot take the plan's buffers. Launch and function attributes are those of
triton/backends/nvidia/driver.c, 3.6 to 3.9. The grid counts programs; with clusters its first axis is multiplied by
their size. `launch` is for sources that use `evo_kernel.cuda` and run outside a recording: the judge does not use it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from cuda.bindings import driver as cuda  # pyright: ignore[reportMissingImports]

from evo_kernel.cuda import CudaLaunch
from evo_kernel.fitness.compile import nvrtc
from evo_kernel.fitness.plan.launch_plan import (
    Binary,
    CompiledPlan,
    Constant,
    Copy,
    Descriptor,
    Fill,
    Launch,
    Scalar,
    TensorMeta,
)
from evo_kernel.fitness.runners import launch_limits, parameters
from evo_kernel.fitness.runners.cuda_memory import POISON, Arena, ConstantTable, run_aten
from evo_kernel.fitness.runners.launch_limits import CudaFault, PlanFault
from evo_kernel.fitness.runners.parameters import scalar

_STATIC_SHARED = 48 << 10  # bytes of shared memory that need no opt-in
_REFUSED_LAUNCHES = {
    1: "a value of the launch is invalid",
    98: "the code does not fit this GPU",
    701: "it needs more registers, threads or shared memory than a block may have",
    720: "a cooperative launch must fit on the GPU at once",
    801: "this GPU does not support it",
    912: "this GPU cannot place a cluster of that size",
}  # CUresult codes after which the context is intact


def current_stream() -> Any:
    """torch's current stream on the worker's one GPU, as the driver has it: `torch.cuda.current_stream` makes an object
    of its own, which takes as long as a launch."""
    return cuda.CUstream(torch._C._cuda_getCurrentRawStream(0))


def ok(result: tuple[Any, ...]) -> Any:
    """Unpack a driver call's result. Raises CudaFault."""
    code, *values = result
    if code != cuda.CUresult.CUDA_SUCCESS:
        _, text = cuda.cuGetErrorString(code)
        raise CudaFault((text or b"unknown CUDA error").decode(), int(code))
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def device_limits() -> launch_limits.DeviceLimits:
    """Limits of torch's current GPU. Queried once: a process has one GPU."""
    torch.cuda.init()
    torch.empty(1, device="cuda")  # makes torch's primary context current
    device = ok(cuda.cuCtxGetDevice())
    kinds = cuda.CUdevice_attribute

    def asked(kind: Any) -> int:
        return int(ok(cuda.cuDeviceGetAttribute(kind, device)))

    return launch_limits.DeviceLimits(
        arch=10 * asked(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        + asked(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        shared_bytes=asked(kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        threads=asked(kinds.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        sm_count=asked(kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        cooperative=bool(asked(kinds.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)),
        reserved_shared_bytes=asked(kinds.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
    )


@dataclass
class _Loaded:
    module: Any
    function: Any
    binary: Binary


class Launcher:
    """Loads the modules of one plan and launches its nodes over an arena.

    `clear` is called before every run with the bytes of local memory that a thread of the plan's kernels may use.
    """

    def __init__(self, plan: CompiledPlan, clear: Callable[[int], None]) -> None:
        self._plan, self._clear = plan, clear
        limits = device_limits()
        launch_limits.check_plan(plan, limits)
        torch.cuda.current_stream().synchronize()
        self._driver_version = int(ok(cuda.cuDriverGetVersion()))
        self._loaded: list[_Loaded] = []
        try:
            self._prepare(plan, limits)
        except BaseException:
            self.close()
            raise

    def _prepare(self, plan: CompiledPlan, limits: launch_limits.DeviceLimits) -> None:
        for binary in plan.binaries:
            self._loaded.append(_load(binary))
        self._local_bytes = max(map(_local_bytes, self._loaded), default=0)
        nodes = plan.plan.nodes
        launches = [index for index, node in enumerate(nodes) if isinstance(node, Launch)]
        self._numbers = {index: number for number, index in enumerate(launches)}  # launch number by node index
        self._tables = {
            i: ConstantTable(plan, n, "cuda") for i, n in enumerate(nodes) if isinstance(n, Constant) and n.data
        }
        for launch in plan.plan.launches:
            self._check_cooperative(launch, limits)

    def prepare(self, arena: Arena, poison: int | None = POISON) -> None:
        """Before every run: overwrite everything that an earlier launch of any plan wrote, except inputs.

        `poison`: see `Arena.poison`.
        """
        arena.poison(poison)
        self._clear(self._local_bytes)

    def run(self, arena: Arena, in_place: bool = False) -> None:
        """Launch every node in order on torch's current stream; does not wait for the GPU.

        `in_place`: results of torch operations that are no outputs stay where these put them, as in a program, rather
        than between canaries, and are freed at the end. Outputs are copied: graphs that share a pool would overwrite
        one another's.
        """
        plan = self._plan.plan
        in_place = in_place and not any(isinstance(node, Constant) and node.relocations for node in plan.nodes)
        for index in range(len(plan.nodes)):
            self.step(arena, index, in_place)
        arena.release()

    def step(self, arena: Arena, index: int, in_place: bool = False) -> None:
        """Launch the node at `index`. `in_place`: see `run`."""
        node = self._plan.plan.nodes[index]
        if isinstance(node, Launch):
            self._launch(node, arena, arena.scratch(self._numbers[index]))
        elif isinstance(node, Fill):
            arena.tensor(node.view).fill_(node.value)
        elif isinstance(node, Copy):
            arena.tensor(node.target).copy_(arena.tensor(node.source))
        elif isinstance(node, Constant):
            if index in self._tables:
                self._tables[index].write(arena)
        else:
            run_aten(node, [arena.tensor(view) for view in node.views], arena, in_place)

    def _launch(self, node: Launch, arena: Arena, scratch: tuple[int, int]) -> None:
        loaded = self._loaded[node.kernel]
        kernel, binary = self._plan.plan.kernels[node.kernel], loaded.binary
        values = parameters.pack(kernel, binary, node, arena, scratch, self._tensor_map)
        holders = [ctypes.create_string_buffer(value, len(value)) for value in values]
        table = (ctypes.c_void_p * max(1, len(holders)))(*(ctypes.addressof(holder) for holder in holders))
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = node.grid[0] * binary.num_ctas, node.grid[1], node.grid[2]
        config.blockDimX, config.blockDimY, config.blockDimZ = node.block or (binary.threads, 1, 1)
        config.sharedMemBytes = binary.shared_bytes
        config.hStream = current_stream()
        attributes = _attributes(binary)
        config.attrs, config.numAttrs = attributes, len(attributes)
        try:
            ok(cuda.cuLaunchKernelEx(config, loaded.function, ctypes.addressof(table), 0))
        except CudaFault as fault:
            if fault.code in _REFUSED_LAUNCHES:
                why = _REFUSED_LAUNCHES[fault.code]
                raise PlanFault(f"the GPU does not launch kernel {kernel.name}: {why} ({fault})") from fault
            raise

    def _tensor_map(self, arg: Descriptor, meta: TensorMeta, address: int) -> bytes:
        return parameters.encode(parameters.tensor_map(arg, meta, address), address, self._driver_version)

    def _check_cooperative(self, launch: Launch, limits: launch_limits.DeviceLimits) -> None:
        loaded = self._loaded[launch.kernel]
        if loaded.binary.cooperative:
            threads = math.prod(launch.block) if launch.block else loaded.binary.threads
            fit = cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(loaded.function, threads, loaded.binary.shared_bytes)
            launch_limits.check_cooperative(loaded.binary, launch, int(ok(fit)), limits)

    def close(self) -> None:
        for loaded in self._loaded:
            ok(cuda.cuModuleUnload(loaded.module))
        self._loaded = []


def _attributes(binary: Binary) -> list[Any]:
    kinds = cuda.CUlaunchAttributeID
    attributes: list[Any] = []

    def add(kind: Any) -> Any:
        attributes.append(cuda.CUlaunchAttribute())
        attributes[-1].id = kind
        return attributes[-1].value

    if binary.dependent:
        add(kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).programmaticStreamSerializationAllowed = 1
    if binary.cooperative:
        add(kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = 1
    if binary.num_ctas > 1:
        cluster = add(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim
        cluster.x, cluster.y, cluster.z = binary.num_ctas, 1, 1
        spread = cuda.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
        policy = add(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
        policy.clusterSchedulingPolicyPreference = spread
    return attributes


def _local_bytes(loaded: _Loaded) -> int:
    """Local memory that a thread of a kernel may address: its frame and the stack of called functions."""
    kind = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
    frame = max(int(ok(cuda.cuFuncGetAttribute(kind, loaded.function))), loaded.binary.spill_bytes)
    if not frame and not loaded.binary.instructions.keys() & {"spill", "generic"}:
        return 0  # inline assembly can reach the stack without a frame, also by generic addresses
    return frame + int(ok(cuda.cuCtxGetLimit(cuda.CUlimit.CU_LIMIT_STACK_SIZE)))


def _load(binary: Binary) -> _Loaded:
    """Load a module and its function, and set the attributes for its launches. Raises PlanFault, CudaFault."""
    kinds = cuda.CUfunction_attribute
    try:
        module = ok(cuda.cuModuleLoadData(binary.cubin))
    except CudaFault as fault:
        raise PlanFault(f"the GPU does not take kernel {binary.symbol}: {fault}") from fault
    try:
        function = ok(cuda.cuModuleGetFunction(module, binary.symbol.encode()))
        if binary.block_shared_bytes > _STATIC_SHARED:
            ok(cuda.cuFuncSetCacheConfig(function, cuda.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED))
            size = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            ok(cuda.cuFuncSetAttribute(function, size, binary.shared_bytes))
        if max(binary.num_ctas, _cluster_of_code(function)) > launch_limits.PORTABLE_CLUSTER:
            ok(cuda.cuFuncSetAttribute(function, kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
    except CudaFault as fault:
        cuda.cuModuleUnload(module)
        raise PlanFault(f"the GPU does not take kernel {binary.symbol}: {fault}") from fault
    return _Loaded(module, function, binary)


def _cluster_of_code(function: Any) -> int:
    """Blocks of a cluster by `__cluster_dims__` of CUDA C++; 1 without it."""
    kinds = cuda.CUfunction_attribute
    axes = (
        kinds.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
        kinds.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
        kinds.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
    )
    return math.prod(max(1, int(ok(cuda.cuFuncGetAttribute(axis, function)))) for axis in axes)


def launch(call: CudaLaunch) -> None:
    """Compile once, then launch on torch's current stream. Raises CudaTextError, PlanFault, CudaFault."""
    kernel = call.kernel
    arch = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    function = _function(kernel.code, kernel.name, kernel.options, arch, torch.cuda.current_device())
    if call.shared_bytes > 48 << 10:
        size = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        ok(cuda.cuFuncSetAttribute(function, size, call.shared_bytes))
    values = [_packed(kind, value) for (_, kind), value in zip(kernel.parameters, call.args, strict=True)]
    holders = [ctypes.create_string_buffer(value, len(value)) for value in values]
    table = (ctypes.c_void_p * max(1, len(holders)))(*(ctypes.addressof(holder) for holder in holders))
    stream = current_stream()
    ok(
        cuda.cuLaunchKernel(
            function, *call.grid, *call.block, call.shared_bytes, stream, ctypes.addressof(table), 0
        )
    )  # fmt: skip


@functools.cache
def _function(code: str, name: str, options: tuple[str, ...], arch: int, device: int) -> Any:
    del device  # a module belongs to its device's context
    torch.empty(1, device="cuda")
    compiled = nvrtc.load().compile(code, name, arch, options)
    module = ok(cuda.cuModuleLoadData(compiled.cubin))
    return ok(cuda.cuModuleGetFunction(module, compiled.symbol.encode()))


def _packed(kind: str, value: Any) -> bytes:
    if kind.startswith("*"):
        return struct.pack("<Q", value.data_ptr())
    return scalar(kind, Scalar(type=kind, value=value))
