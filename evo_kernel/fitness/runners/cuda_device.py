"""The GPU behind the clock: marks are events, replays are CUDA graphs. In the trusted worker only."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from cuda.bindings import driver  # pyright: ignore[reportMissingImports]

from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.runners.clock import Replay
from evo_kernel.fitness.runners.cuda_driver import Arena, CudaFault, Launcher, PlanFault, ok
from evo_kernel.fitness.runners.cuda_mapping import Mappings
from evo_kernel.fitness.runners.nvml import GpuState, Nvml
from evo_kernel.fitness.runners.sm_state import Clearing
from evo_kernel.fitness.timing.estimates import TIMING

_WIPE_BYTE = 0xFF
_STATE_S = 0.1
_MEMORY_S = 1.0


class CudaDevice:
    """What the judge's side needs of a GPU: torch's current CUDA device. For one thread."""

    name = "cuda"  # as torch spells it
    refused: tuple[type[Exception], ...] = (PlanFault,)  # raised when a plan cannot be launched as it stands
    broken: tuple[type[Exception], ...] = (CudaFault, RuntimeError)  # raised when the GPU stops, among other things

    def __init__(self) -> None:
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
        self.l2_bytes = int(properties.L2_cache_size)
        self._flush = torch.zeros(int(self.l2_bytes * TIMING.flush_bytes_of_l2), dtype=torch.uint8, device="cuda")
        self.clearing, self.mappings = Clearing(), Mappings()
        self._side = torch.cuda.Stream()
        self._events: list[torch.cuda.Event] = []
        self._used = 0
        self._state, self._state_at = GpuState(), float("-inf")
        self._memory_bytes, self._memory_at = 0, float("-inf")  # of this process, and what the driver has left
        self._nvml = Nvml(str(getattr(properties, "uuid", "")))
        with contextlib.suppress(CudaFault):  # not every GPU has a persisting part of the L2
            ok(driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0))

    def launcher(self, plan: CompiledPlan) -> Launcher:
        return Launcher(plan, self.clear)

    def arena(self, plan: CompiledPlan) -> Arena:
        return Arena(plan, self.mappings.memory)

    def capture(self, work: Callable[[], Any], rehearse: bool = False) -> Replay:
        """A graph of `work`; `rehearse`: run it once before, since libraries set themselves up on a first call.

        What `work` refers to lives as long as the graph, which knows its memory by address only.

        Not `torch.cuda.graph`: that hands all cached memory back to the driver on every capture, which costs more
        than checking a kernel does.
        """
        graph = torch.cuda.CUDAGraph()
        with self._aside():
            if rehearse:
                work()
            graph.capture_begin()
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        return partial(_replay, graph, work)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """On the stream of captures, in order with the current one."""
        current = torch.cuda.current_stream()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            yield
        current.wait_stream(self._side)

    def synchronize(self) -> None:
        torch.cuda.synchronize()
        self._used = 0

    def clear(self, local_bytes: int = 0) -> None:
        """Overwrite what is not memory: the L2, shared memory and registers of all SMs, local memory of all threads.

        The L2 comes last: a kernel that follows finds it, and the split of L1 and shared memory, as ever.
        """
        self.clearing.sms()
        if local_bytes:
            self.clearing.local(local_bytes)
        self.flush_l2()

    def flush_l2(self) -> None:
        """Of ones, as all that is overwritten: shared memory of the next kernel may be where the L1 kept these."""
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        address = driver.CUdeviceptr(self._flush.data_ptr())
        ok(driver.cuMemsetD8Async(address, _WIPE_BYTE, self._flush.numel(), stream))

    def unpin(self) -> None:
        """Lines that a kernel asked the L2 to keep become ordinary ones, which `clear` drives out."""
        with contextlib.suppress(CudaFault):  # where nothing can be kept there is nothing to give up
            ok(driver.cuCtxResetPersistingL2Cache())

    def mark(self) -> torch.cuda.Event:
        """An event of a ring that starts anew with each synchronisation."""
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

    def wipe(self) -> None:
        """Overwrite every block that torch's allocator holds and nobody uses."""
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        for segment in torch.cuda.memory_snapshot():
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    ok(driver.cuMemsetD8Async(driver.CUdeviceptr(address), _WIPE_BYTE, block["size"], stream))
                address += block["size"]

    def release(self) -> None:
        torch.cuda.synchronize()
        self.mappings.collect()
        torch.cuda.empty_cache()

    def healthy(self) -> bool:
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def free_bytes(self) -> int:
        """What the driver has left, and what is kept here for later.

        The driver is asked once a second, since that takes it milliseconds; what this process takes meanwhile counts.
        """
        stats = torch.cuda.memory_stats_as_nested_dict()
        used = self.mappings.bytes - self.mappings.unused_bytes + stats["allocated_bytes"]["all"]["current"]
        if self.now() - self._memory_at > _MEMORY_S:
            held = self.mappings.bytes + stats["reserved_bytes"]["all"]["current"]
            self._memory_bytes, self._memory_at = torch.cuda.mem_get_info()[0] + held, self.now()
        return self._memory_bytes - used

    def total_bytes(self) -> int:
        return torch.cuda.get_device_properties(0).total_memory

    def state(self) -> GpuState:
        """As of the last tenth of a second: clocks and power are averages over longer, and asking takes its time."""
        if self.now() - self._state_at > _STATE_S:
            self._state, self._state_at = self._nvml.read(), self.now()
        return self._state


def _replay(graph: torch.cuda.CUDAGraph, work: Callable[[], Any]) -> None:
    del work  # held, not called
    graph.replay()
