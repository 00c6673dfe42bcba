"""The GPU as used by the clock: marks are events, replays are CUDA graphs, buffers lie alone. Trusted worker only.

Device memory is mapped at a random address, with nothing mapped for a gigabyte on either side. A kernel that accesses
memory far outside its buffers then faults; it cannot find the judge's memory or leave data for its next launch. Mapping
and unmapping take milliseconds, so unused memory is reused, as it is mapped, for plans that need the same size. Source:
CUDA driver API, "Virtual Memory Management".
"""

from __future__ import annotations

import contextlib
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from cuda.bindings import driver as cuda  # pyright: ignore[reportMissingImports]

from evo_kernel.fitness.gpus import GpuState, Nvml
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.runners.cuda_driver import Launcher, current_stream, ok
from evo_kernel.fitness.runners.cuda_memory import Arena, overlaid
from evo_kernel.fitness.runners.launch_limits import CudaFault, PlanFault
from evo_kernel.fitness.runners.sampling import Replay
from evo_kernel.fitness.runners.sm_state import Clearing
from evo_kernel.fitness.timing.estimates import TIMING

_WIPE_BYTE = 0xFF
Block = tuple[int, int]  # (address, bytes)
_STATE_S = 0.1
_MEMORY_S = 1.0


class CudaDevice:
    """Operations on torch's current CUDA device. For one thread."""

    name = "cuda"  # torch's name
    refused: tuple[type[Exception], ...] = (PlanFault,)  # raised if a plan cannot be launched
    broken: tuple[type[Exception], ...] = (CudaFault, RuntimeError)  # raised if the GPU stops, among other causes

    def __init__(self) -> None:
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
        self.l2_bytes = int(properties.L2_cache_size)
        self._flush = torch.zeros(int(self.l2_bytes * TIMING.flush_bytes_of_l2), dtype=torch.uint8, device="cuda")
        self.clearing, self.mappings = Clearing(), Mappings()
        self._side = torch.cuda.Stream()
        self._capture_lost = False
        self._events: list[torch.cuda.Event] = []
        self._used = 0
        self._state, self._state_at = GpuState(), float("-inf")
        self._memory_bytes, self._memory_at = 0, float("-inf")  # used by this process; free by the driver
        self._nvml = Nvml(str(getattr(properties, "uuid", "")))
        with contextlib.suppress(CudaFault):  # not every GPU has a persisting part of L2
            ok(cuda.cuCtxSetLimit(cuda.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0))

    def launcher(self, plan: CompiledPlan) -> Launcher:
        return Launcher(plan, self.clear)

    def arena(self, plan: CompiledPlan) -> Arena:
        return Arena(plan, self.mappings.memory)

    def overlaid(self, plans: Sequence[CompiledPlan], count: int) -> list[list[Arena]]:
        return overlaid(plans, count, self.mappings.memory)

    def capture(self, work: Callable[[], Any], rehearse: bool = False, pool: Any = None) -> Replay:
        """Capture `work` as a graph; `rehearse`: run it once before, since libraries initialise on a first call.

        `pool`: what torch operations allocate from, shared with other graphs that do not run at the same time.

        The replay keeps objects that `work` refers to alive, because the graph refers to memory by address only.
        `torch.cuda.graph` is not used: it returns all cached memory to the driver on every capture, which costs more
        than checking a kernel.
        """
        graph = torch.cuda.CUDAGraph()
        with self._aside():
            if rehearse:
                work()
            graph.capture_begin(pool=pool)
            try:
                work()
            except BaseException:
                try:
                    graph.capture_end()
                except RuntimeError:  # torch's allocator still takes memory for this graph
                    self._capture_lost = True
                raise
            graph.capture_end()
        return partial(_replay, graph, work)

    def waits(self, work: Callable[[], Any]) -> bool:
        """Whether `work`, called once, waits for the GPU, so that no graph can hold it."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            work()
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            return True
        finally:
            torch.cuda.set_sync_debug_mode(before)
        return False

    def pool(self) -> Any:
        """Torch's id, (int, int), of new memory for graphs."""
        return torch.cuda.graph_pool_handle()

    def free_blocks(self, pool: Any = None) -> list[Block]:
        """Free blocks of torch's allocator; of a pool, those that its graphs use while they run."""
        blocks = []
        for segment in torch.cuda.memory_snapshot():
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "inactive" and pool in (None, tuple(segment["segment_pool_id"])):
                    blocks.append((address, block["size"]))
                address += block["size"]
        return blocks

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Context on the capture stream, ordered with the current stream."""
        current = torch.cuda.current_stream()
        self._side.wait_stream(current)
        try:
            with torch.cuda.stream(self._side):
                yield
        finally:
            current.wait_stream(self._side)

    def synchronize(self) -> None:
        torch.cuda.synchronize()
        self._used = 0

    def clear(self, local_bytes: int = 0) -> None:
        """Overwrite on-chip state: L2, shared memory and registers of all SMs, local memory of all threads.

        L2 comes last, so that the next kernel finds it, and the split of L1 and shared memory, always the same.
        """
        self.clearing.sms()
        if local_bytes:
            self.clearing.local(local_bytes)
        self.flush_l2()

    def flush_l2(self) -> None:
        """Fill L2 with ones, like everything overwritten:

        the next kernel's shared memory may be where L1 held these.
        """
        stream = current_stream()
        address = cuda.CUdeviceptr(self._flush.data_ptr())
        ok(cuda.cuMemsetD8Async(address, _WIPE_BYTE, self._flush.numel(), stream))

    def unpin(self) -> None:
        """Make lines that queued kernels marked as persisting in L2 ordinary, so that `clear` evicts them."""
        torch.cuda.current_stream().synchronize()
        with contextlib.suppress(CudaFault):  # a GPU without persisting lines has nothing to reset
            ok(cuda.cuCtxResetPersistingL2Cache())

    def mark(self) -> torch.cuda.Event:
        """An event from a ring that restarts at each synchronisation."""
        if self._used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        event = self._events[self._used]
        self._used += 1
        event.record()
        return event

    def elapsed_us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return start.elapsed_time(end) * 1e3

    def now(self) -> float:
        return time.perf_counter()

    def wipe(self, blocks: Sequence[Block] | None = None) -> None:
        """Overwrite free blocks of torch's allocator: all of them, if none are given."""
        stream = current_stream()
        for address, size in self.free_blocks() if blocks is None else blocks:
            ok(cuda.cuMemsetD8Async(cuda.CUdeviceptr(address), _WIPE_BYTE, size, stream))

    def release(self) -> None:
        torch.cuda.synchronize()
        self.mappings.collect()
        torch.cuda.empty_cache()

    def healthy(self) -> bool:
        """Whether the process can go on: its context is intact, and no capture was cut off."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return not self._capture_lost

    def free_bytes(self) -> int:
        """Free memory of the driver plus what is cached here.

        The driver is asked once a second, because that takes milliseconds; memory that this process takes meanwhile is
        counted.
        """
        stats = torch.cuda.memory_stats_as_nested_dict()
        used = self.mappings.bytes - self.mappings.unused_bytes + stats["allocated_bytes"]["all"]["current"]
        if self.now() - self._memory_at > _MEMORY_S:
            self._memory_bytes, self._memory_at = torch.cuda.mem_get_info()[0] + self.held_bytes(), self.now()
        return self._memory_bytes - used

    def others_bytes(self) -> int:
        """Memory that other processes have, and all contexts."""
        return self.total_bytes() - torch.cuda.mem_get_info()[0] - self.held_bytes()

    def held_bytes(self) -> int:
        """Memory that this process has, used or not."""
        return self.mappings.bytes + torch.cuda.memory_stats_as_nested_dict()["reserved_bytes"]["all"]["current"]

    def total_bytes(self) -> int:
        return torch.cuda.get_device_properties(0).total_memory

    def state(self) -> GpuState:
        """State of the last tenth of a second: clocks and power are averages over longer, and reading takes time."""
        if self.now() - self._state_at > _STATE_S:
            self._state, self._state_at = self._nvml.read(), self.now()
        return self._state


def _replay(graph: torch.cuda.CUDAGraph, work: Callable[[], Any]) -> None:
    del work  # kept alive, not called
    graph.replay()


_GAP_BYTES = 1 << 30
_PLACES = (1 << 41, 1 << 46)  # range of requested addresses; the driver chooses others if these are taken
_OUT_OF_MEMORY = 2  # CUresult
_UNUSED_BYTES = 4 << 30  # most bytes that stay mapped for reuse


class _Mapped:
    """Memory in the form that torch needs to make a tensor, which keeps it alive."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


class Mappings:
    """Mapped memory of torch's current GPU. For one thread.

    Memory without references is reused for requests of the same size. It is unmapped when there is too much of it, or
    in `collect`, but never immediately: unmapping waits for the GPU, which is not allowed during graph capture.
    """

    def __init__(self) -> None:
        self._device = torch.cuda.current_device()
        self._kind = cuda.CUmemAllocationProp()
        self._kind.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._kind.location = self._place()
        least = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._page_bytes = int(ok(cuda.cuMemGetAllocationGranularity(self._kind, least)))
        self._unused: list[tuple[int, int, Any]] = []  # (address, bytes, handle), latest last
        self.bytes = 0  # mapped, used or not

    @property
    def unused_bytes(self) -> int:
        return sum(size for _, size, _ in self._unused)

    def memory(self, size: int) -> torch.Tensor:
        """A mapping of at least `size` bytes as uint8, with its last user's content. Raises torch.OutOfMemoryError."""
        size = -(-size // self._page_bytes) * self._page_bytes
        for place in reversed(range(len(self._unused))):
            if self._unused[place][1] == size:
                return self._lent(*self._unused.pop(place))
        if self.unused_bytes > _UNUSED_BYTES:
            self.collect()
        return self._lent(*self._mapped(size))

    def collect(self) -> None:
        """Unmap unused memory."""
        if not self._unused:
            return
        torch.cuda.synchronize()
        while self._unused:
            address, size, handle = self._unused.pop()
            self.bytes -= size
            ok(cuda.cuMemUnmap(address, size))
            ok(cuda.cuMemRelease(handle))
            ok(cuda.cuMemAddressFree(address - _GAP_BYTES, size + 2 * _GAP_BYTES))

    def _lent(self, address: int, size: int, handle: Any) -> torch.Tensor:
        mapped = _Mapped(address, size)
        weakref.finalize(mapped, self._unused.append, (address, size, handle)).atexit = False
        return torch.as_tensor(mapped, device=torch.device("cuda", self._device))

    def _mapped(self, size: int) -> tuple[int, int, Any]:
        handle = self._created(size)
        low, high = (place // self._page_bytes for place in _PLACES)
        hint = (low + secrets.randbelow(high - low)) * self._page_bytes
        address = int(ok(cuda.cuMemAddressReserve(size + 2 * _GAP_BYTES, 0, hint, 0))) + _GAP_BYTES
        ok(cuda.cuMemMap(address, size, 0, handle, 0))
        access = cuda.CUmemAccessDesc()
        access.location = self._place()
        access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        ok(cuda.cuMemSetAccess(address, size, [access], 1))
        self.bytes += size
        return address, size, handle

    def _created(self, size: int) -> Any:
        with contextlib.suppress(CudaFault):
            return ok(cuda.cuMemCreate(size, self._kind, 0))
        self.collect()
        torch.cuda.empty_cache()
        try:
            return ok(cuda.cuMemCreate(size, self._kind, 0))
        except CudaFault as fault:
            if fault.code == _OUT_OF_MEMORY:
                raise torch.OutOfMemoryError(f"CUDA out of memory: tried to allocate {size} bytes") from fault
            raise

    def _place(self) -> Any:
        place = cuda.CUmemLocation()
        place.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = self._device
        return place
