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
from pathlib import Path
from typing import Any

import torch

from evo_kernel.fitness import regimes
from evo_kernel.fitness.plan import CompiledPlan, Launch, load_plan_file
from evo_kernel.fitness.runners.referee import fill
from evo_kernel.tasks.loading import load


def main() -> None:
    os.dup2(2, 1)  # stdout is ncu's: its table
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    signal.alarm(int(request["deadline_s"]) + 10)  # it must end even when whoever started it is gone
    task = load(request["task"])
    for part in request["parts"]:
        generator = torch.Generator("cuda").manual_seed(int(part["seed"]))
        inputs = regimes.apply("nominal", task.inputs(task.case(part["case"]), generator, "cuda"))
        replay(load_plan_file(Path(part["plan"])), inputs, int(part["launches"]), int(request["rounds"]))


def replay(compiled: CompiledPlan, inputs: Any, launches: int, rounds: int) -> None:
    """The plan once unseen, since code is loaded on a first launch, then `rounds` times with its launches counted."""
    from evo_kernel.fitness.runners.cuda_driver import Arena

    arena = Arena(compiled)
    arena.poison(compiled)
    fill(arena, compiled, inputs)
    for number in range(rounds + 1):
        _walk(compiled, arena, launches if number else 0)


def _walk(compiled: CompiledPlan, arena: Any, counted: int) -> None:
    """Every node in order; the profiler is on for the first `counted` launches."""
    from evo_kernel.fitness.runners.cuda_driver import Launcher

    seen = 0
    for node in compiled.plan.nodes:
        one = compiled.model_copy(update={"plan": compiled.plan.model_copy(update={"nodes": (node,)})})
        launcher = Launcher(one)
        seen += isinstance(node, Launch)
        watched = isinstance(node, Launch) and seen <= counted
        torch.cuda.synchronize()
        if watched:
            _profiler(True)
        launcher.run(arena)
        torch.cuda.synchronize()
        if watched:
            _profiler(False)
        launcher.close()


def _profiler(on: bool) -> None:
    """Whether ncu counts from here on. Without ncu the driver may say that there is no profiler: no fault."""
    from cuda.bindings import driver  # pyright: ignore[reportMissingImports]

    (driver.cuProfilerStart if on else driver.cuProfilerStop)()


if __name__ == "__main__":
    main()
