"""A GPU that is none: plans by name, a simulated clock, and a worker process around it.

The launcher does what the plan's first kernel is called: `honest` computes softmax rows with torch, the others break
in one way each. A kernel takes the microseconds that its name ends in (`honest_50`), with noise and drift. Memory is
real: arenas are those of the GPU, in the memory of the host.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evo_kernel.fitness.gpus import GpuState
from evo_kernel.fitness.plan.launch_plan import Aten, Binary, Buffer, CompiledPlan, Kernel, Launch, Plan, Pointer, View
from evo_kernel.fitness.runners.cuda_memory import POISON, Arena, overlaid
from evo_kernel.fitness.runners.cuda_worker import GpuWorker, RequestHandler
from evo_kernel.fitness.runners.launch_limits import CudaFault
from evo_kernel.fitness.runners.process import GO, LOAD
from evo_kernel.fitness.timing.estimates import TIMING
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Task
from tests.fitness.handmade import empty_ir
from tests.support.warm import command

TASK_TEXT = '''"""Softmax over rows."""
import torch

CASES = {"check": [{"m": 3, "n": 7}, {"m": 4, "n": 33}], "search": [{"m": 64, "n": 128}], "confirm": [{"m": 8, "n": 8}]}


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(x):
    return torch.softmax(x, dim=-1)


def broken(x):
    raise RuntimeError("this build has no such path")


BASELINES = {"eager": reference, "broken": broken}
reference.compiled_baseline = False
'''


def task_in(folder: Path, more: str = ""):
    path = folder / "rows.py"
    path.write_text(TASK_TEXT + more)
    return load(path)


def plan(name: str, m: int, n: int) -> CompiledPlan:
    views = [View(buffer=i, dtype="float32", shape=(m, n), strides=(n, 1)) for i in (0, 1)]
    kernel = Kernel(name=name, code=empty_ir(name, ("*fp32", "*fp32")), signature=(("x", "*fp32"), ("y", "*fp32")))
    made = Plan(
        case=f"m{m}-n{n}", target=90, inputs=(views[0],),
        buffers=(Buffer(kind="input", bytes=m * n * 4), Buffer(kind="scratch", bytes=m * n * 4)),
        kernels=(kernel,), nodes=(Launch(kernel=0, grid=(m, 1, 1), args=(Pointer(buffer=0), Pointer(buffer=1))),),
        outputs=(views[1],),
    )  # fmt: skip
    binary = Binary(key=kernel.key, ir=kernel.code, symbol=name, cubin=name.encode() * 3, code_hash=name, num_warps=4)
    return CompiledPlan(plan=made, binaries=(binary,))


def mixed(one: CompiledPlan) -> CompiledPlan:
    """The plan with a torch operation, whose result nobody takes."""
    view = one.plan.inputs[0]
    node = Aten(op="aten.neg.default", views=(view,), args=[{"view": 0}], kwargs={}, outputs=(None,))
    return one.model_copy(update={"plan": one.plan.model_copy(update={"nodes": (*one.plan.nodes, node)})})


class PlanRefused(Exception):
    pass


def memory(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


class FakeLauncher:
    def __init__(self, device: FakeDevice, plan: CompiledPlan) -> None:
        self.device, self.plan = device, plan
        self.kind, _, tail = plan.plan.kernels[0].name.partition("_")
        self.us = float(tail) if tail.isdecimal() else 50.0
        self.timed = 0
        self.seen: dict[int, int] = {}  # arenas, in the order of their first launches
        if self.kind == "refused":
            raise PlanRefused("the GPU does not take it")
        if self.kind == "oom":
            raise torch.OutOfMemoryError("tried to allocate far too much")

    def prepare(self, arena: Arena, poison: int | None = POISON) -> None:
        arena.poison(poison)
        self.device.clear()

    def step(self, arena: Arena, index: int) -> None:
        self.device.stepped.append(self.plan.plan.nodes[index].kind)
        if isinstance(self.plan.plan.nodes[index], Launch):
            self.run(arena)

    def run(self, arena: Arena, in_place: bool = False) -> None:
        self.device.launches += 1
        self.device.in_place += in_place
        plan = self.plan.plan
        x = arena.tensor(plan.inputs[0])
        y = arena.tensor(plan.outputs[0] if plan.outputs else plan.inputs[0].model_copy(update={"buffer": 1}))
        if self.device.timing:
            self.timed += 1
            self.device.unprepared += not self.device.cleared or bool((y == torch.softmax(x, -1)).any())
            self.device.poisons.add(bytes(y.view(torch.uint8).flatten()[:8]))
        self.device.stale_results += bool(self.plan.plan.aten_nodes) and not self.device.torch_cleared
        self.device.cleared = self.device.torch_cleared = False
        place = self.device.places.setdefault(arena.memory.data_ptr(), len(self.device.places))
        self.device.run_for(self.us * (1.08 if place < self.device.slow_places else 1.0))
        match self.kind:
            case "illegal":
                self.device.lost = True
            case "unlaunched":
                self.device.stuck = True
                raise CudaFault("invalid argument", 1)
            case _ if self.device.stuck:
                time.sleep(3600)
            case "endless":
                time.sleep(3600)
            case "dies":
                os._exit(1)
            case "stumbles":
                raise KeyError("what no plan should bring about")
            case "nothing":
                return
            case "lazy" if self.device.timing:
                return
            case "places" if self.seen.setdefault(id(arena), len(self.seen)) % 2:  # idle at every other place
                return
            case "unwritten":  # makes numbers of what nobody wrote, as nan_to_num does
                y.copy_(torch.softmax(x, -1) + torch.nan_to_num(y))
                return
            case "beyond":  # adds what lies behind its input: a number too small to see, or one too large
                data = arena.bytes_of(self.plan.plan.inputs[0].buffer)
                y.copy_(
                    torch.softmax(x, -1)
                    + data.as_strided((4,), (1,), data.storage_offset() + data.numel()).view(x.dtype)
                )
                return
            case "outside":
                data = arena.bytes_of(self.plan.plan.outputs[0].buffer)
                data.as_strided((4,), (1,), data.storage_offset() + data.numel()).zero_()
            case "once" if self.timed == self.us:
                x.neg_()  # wrong in one timed launch alone
            case "flips":
                x.neg_()  # every other launch finds its input as it was
            case "random":
                y.copy_(torch.rand_like(y))
                return
            case "sniffs" if y.view(torch.uint8).unique().numel() == 1 and not y.isnan().any():  # no check does so
                self.device.us -= self.us / 2
                y.copy_(torch.softmax(x.clamp(max=20.0), -1))
                return
            case "unsafe" if len(x) > 32:  # overflows where values are large, at the timed size alone
                y.copy_(x.exp() / x.exp().sum(-1, keepdim=True))
                return
        result = torch.softmax(x, -1)
        y.copy_(result + 0.01 if self.kind == "wrong" else result)
        if (self.kind == "late" and self.timed == self.us) or (self.kind == "often" and self.timed % 3 == 0):
            y[0] = y[1]
        if self.kind == "input":
            x.zero_()

    def close(self) -> None:
        self.device.closed += 1


class FakeDevice:
    """Implements Device on the CPU. `noise` and `drift` are shares of a kernel's time; the clock ticks in `tick_us`."""

    name = "cpu"
    refused: tuple[type[Exception], ...] = (PlanRefused,)
    broken: tuple[type[Exception], ...] = (CudaFault, RuntimeError)
    l2_bytes = 1 << 14

    def __init__(self, noise: float = 0.002, drift: float = 0.0, tick_us: float = 0.0, skew: float = 1.0) -> None:
        self.noise, self.drift, self.tick_us, self.skew = noise, drift, tick_us, skew
        self.rng = np.random.default_rng(7)
        self.us = 0.0  # of the simulated clock
        self.lost = self.stuck = self.timing = self.waiting = False
        self.closed = self.wipes = self.samples = self.released = self.launches = self.in_place = 0
        self.cleared, self.torch_cleared = False, True  # since the last launch
        self.clears = self.unpins = self.unprepared = self.stale_results = 0
        self.stepped: list[str] = []
        self.places: dict[int, int] = {}  # addresses of arenas, in the order of their first launches
        self.slow_places = 0  # so many of them, the first ones, make every kernel slower
        self.poisons: set[bytes] = set()  # that timed launches found where their outputs begin

    def run_for(self, us: float) -> None:
        self.samples += 1
        self.us += us * (1 + self.drift * self.samples / 1000) * float(np.exp(self.rng.normal(0, self.noise)))

    def launcher(self, plan: CompiledPlan) -> FakeLauncher:
        return FakeLauncher(self, plan)

    def arena(self, plan: CompiledPlan) -> Arena:
        return Arena(plan, memory)

    def overlaid(self, plans: Sequence[CompiledPlan], count: int) -> list[list[Arena]]:
        return overlaid(plans, count, memory)

    def capture(
        self, work: Callable[[], Any], rehearse: bool = False, pool: tuple[int, int] | None = None
    ) -> Callable[[], Any]:
        if self.waiting:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if rehearse:
            before = self.stale_results
            work()
            self.stale_results = before

        def replay() -> None:
            self.timing, before = True, self.us
            work()
            self.timing = False
            if self.us == before:  # work of torch's own
                self.run_for(30.0)

        return replay

    def waits(self, work: Callable[[], Any]) -> bool:
        work()
        return self.waiting

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.us += 5.0

    def clear(self, local_bytes: int = 0) -> None:
        self.clears += 1
        self.cleared = True
        self.us += 40.0

    def unpin(self) -> None:
        self.unpins += 1

    def mark(self) -> float:
        return self.us if not self.tick_us else round(self.us / self.tick_us) * self.tick_us

    def elapsed_us(self, start: float, end: float) -> float:
        return end - start

    def now(self) -> float:
        return self.us * 1e-6 * self.skew

    def pool(self) -> tuple[int, int]:
        return 0, 1

    def free_blocks(self, pool: tuple[int, int] | None = None) -> list[tuple[int, int]]:
        return [(1 << 40, 512)]

    def wipe(self, blocks: Sequence[tuple[int, int]] | None = None) -> None:
        self.wipes += blocks is None
        self.torch_cleared = self.torch_cleared or blocks is None or len(blocks) > 0

    def release(self) -> None:
        self.released += 1

    def healthy(self) -> bool:
        return not self.lost

    def free_bytes(self) -> int:
        return 1 << 26

    def total_bytes(self) -> int:
        return 1 << 28

    def others_bytes(self) -> int:
        return 0

    def held_bytes(self) -> int:
        return 0

    def state(self) -> GpuState:
        return GpuState(clock_mhz=1980.0, power_w=600.0)


SETTINGS = dataclasses.replace(TIMING, metronome_bytes=1 << 10)


def timed(function: Callable[..., Any], device: FakeDevice, us: float) -> Callable[..., Any]:
    """A torch function that takes so long on the simulated clock."""

    @functools.wraps(function)
    def work(*inputs: Any) -> Any:
        device.run_for(us)
        return function(*inputs)

    return work


def worker_command(task: Task) -> tuple[str, ...]:
    """What starts a worker process around a simulated GPU."""
    return command("tests.fitness.fake_gpu", task.spec)


def main() -> None:
    torch.set_num_threads(1)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = os.fdopen(0, "rb")
    task = load(sys.argv[1])
    order = requests.readline()
    if order == LOAD:
        replies.write(b'{"loaded": true}\n')
        replies.flush()
        order = requests.readline()
    if order != GO:
        return
    device = FakeDevice()
    worker = GpuWorker(task, device, requests, replies)
    worker.handler = RequestHandler(task, device, SETTINGS)
    worker.handler.timer.bench_sizes = {"copy_bytes": 1 << 12, "side": 16}
    worker.reply({"device": "a simulated GPU", "arch": 90, "driver": "0", "pid": os.getpid()})
    worker.serve()
