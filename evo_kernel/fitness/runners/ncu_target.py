"""Profiling target for Nsight Compute: a trusted process that launches the kernels of saved plans a few times.

ncu starts it as `python -P -m evo_kernel.fitness.runners.ncu_target REQUEST`. Inputs are drawn as in the GPU process.
All nodes of a plan run in order on real data, without graphs. The profiler is enabled around kernel launches only, so
torch's launches are not counted. No candidate Python runs here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, Launch, load_plan_file
from evo_kernel.fitness.runners.cuda_memory import Arena
from evo_kernel.fitness.runners.worker_state import fill
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Input

if TYPE_CHECKING:
    from evo_kernel.fitness.runners.cuda_device import CudaDevice
    from evo_kernel.fitness.runners.cuda_driver import Launcher


def main() -> None:
    os.dup2(2, 1)  # stdout is for ncu's table
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    signal.alarm(int(request["deadline_s"]) + 10)  # it must end even if its parent has ended
    task = load(request["task"])
    from evo_kernel.fitness.runners.cuda_device import CudaDevice

    device = CudaDevice()
    for part in request["parts"]:
        generator = torch.Generator(device.name).manual_seed(int(part["seed"]))
        inputs = regimes.apply("nominal", task.inputs(task.case(part["case"]), generator, device.name))
        plan = load_plan_file(Path(part["plan"]))
        replay(plan, inputs, int(part["launches"]), int(request["rounds"]), device, _profiler)


def replay(
    compiled: CompiledPlan,
    inputs: Sequence[Input],
    launches: int,
    rounds: int,
    device: CudaDevice,
    profiler: Callable[[bool], None],
) -> None:
    """Run the plan once without profiling, because a first launch loads code, then `rounds` times with profiling.

    Each run starts in the state of a timed launch. `profiler` is switched on and off around each of the first
    `launches` kernel launches.
    """
    arena, launcher = device.arena(compiled), device.launcher(compiled)
    fill(arena, compiled, inputs)
    for number in range(rounds + 1):
        launcher.prepare(arena)
        _walk(compiled, launcher, arena, launches if number else 0, device, profiler)
    launcher.close()


def _walk(
    compiled: CompiledPlan,
    launcher: Launcher,
    arena: Arena,
    counted: int,
    device: CudaDevice,
    profiler: Callable[[bool], None],
) -> None:
    """Launch every node in order."""
    seen = 0
    for index, node in enumerate(compiled.plan.nodes):
        seen += isinstance(node, Launch)
        watched = isinstance(node, Launch) and seen <= counted
        device.synchronize()
        if watched:
            profiler(True)
        launcher.step(arena, index)
        device.synchronize()
        if watched:
            profiler(False)


def _profiler(on: bool) -> None:
    """Switch ncu's profiling on or off. Without ncu the driver may report an error, which is ignored."""
    runtime: Any = torch.cuda.cudart()
    (runtime.cudaProfilerStart if on else runtime.cudaProfilerStop)()


if __name__ == "__main__":
    main()
