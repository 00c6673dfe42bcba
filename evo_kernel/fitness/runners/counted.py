"""What Nsight Compute looks at: a trusted process that launches the kernels of saved plans a few times.

Started under ncu as `python -P -m evo_kernel.fitness.runners.counted REQUEST`. Inputs are drawn as the GPU process
draws them, every node of a plan runs in order on real data, without graphs, and the profiler is on around single
kernel launches only: what torch launches beside them is not counted. No candidate Python runs here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from evo_kernel.fitness import regimes
from evo_kernel.fitness.plan import CompiledPlan, Launch, load_plan_file
from evo_kernel.fitness.profile import only
from evo_kernel.fitness.runners.clock import Buffers, Device
from evo_kernel.fitness.runners.referee import fill
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Input


def main() -> None:
    os.dup2(2, 1)  # stdout is ncu's: its table
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    signal.alarm(int(request["deadline_s"]) + 10)  # it must end even when whoever started it is gone
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
    device: Device,
    profiler: Callable[[bool], None],
) -> None:
    """The plan once unseen, since code is loaded on a first launch, then `rounds` times with its launches counted.

    `profiler` is told when to begin and when to end: around each of the first `launches` kernel launches.
    """
    arena = device.arena(compiled)
    arena.poison(compiled)
    fill(arena, compiled, inputs)
    for number in range(rounds + 1):
        _walk(compiled, arena, launches if number else 0, device, profiler)


def _walk(
    compiled: CompiledPlan, arena: Buffers, counted: int, device: Device, profiler: Callable[[bool], None]
) -> None:
    """Every node in order, each through a launcher of its own: what that loads and sets up is not counted."""
    seen = 0
    for node in compiled.plan.nodes:
        seen += isinstance(node, Launch)
        watched = isinstance(node, Launch) and seen <= counted
        launcher = device.launcher(only(compiled, node))
        device.synchronize()
        if watched:
            profiler(True)
        launcher.run(arena)
        device.synchronize()
        if watched:
            profiler(False)
        launcher.close()


def _profiler(on: bool) -> None:
    """Whether ncu counts from here on. Without ncu the driver may say that there is no profiler: no fault."""
    runtime: Any = torch.cuda.cudart()
    (runtime.cudaProfilerStart if on else runtime.cudaProfilerStop)()


if __name__ == "__main__":
    main()
