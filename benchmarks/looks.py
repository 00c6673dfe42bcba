"""How many programs a look at real size executes and compares without a GPU, and what it costs.

python -m benchmarks.looks [TASK ...]

Seeds of built-in tasks, their first search case. Seconds are of one core. A wrong program is found where any of its
elements is compared; what is printed is the chance to find a fault in 1 of 40 programs, drawn at random.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

from evo_kernel.fitness.correctness.slicing.reference import SlicedReference
from evo_kernel.fitness.ir.memory import PADDING
from evo_kernel.fitness.ir.nodes import memory_of, modules_of, run_nodes
from evo_kernel.fitness.ir.partial import PartialExecution
from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.runners.cpu_references import LookLimits
from evo_kernel.fitness.runners.executor import input_files
from evo_kernel.tasks import loading
from evo_kernel.types import CaseKind

RARE = 40


def measure(name: str) -> None:
    task = loading.load(name)
    case = task.cases_of(CaseKind.SEARCH)[0]
    with open_judge(task, device="cpu", settings=JudgeSettings(tune_plans=0)) as judge:
        compiled = judge.plans(task.seed, (), (CaseKind.SEARCH,))[case.name]
    assert isinstance(compiled, CompiledPlan)
    plan, inputs = compiled.plan, task.inputs(case, torch.Generator().manual_seed(0), "cpu")
    files = input_files(plan, inputs)
    contents = {
        number: torch.frombuffer(bytearray(files[file]), dtype=torch.uint8)
        for number in range(len(plan.buffers))
        if (file := f"buffer{number}.bin") in files
    }
    began = time.process_time()
    modules = modules_of(plan, [binary.ir for binary in compiled.binaries])
    memory = memory_of(plan, contents)
    part = PartialExecution(plan, modules, memory, float("inf"), torch.Generator().manual_seed(1))
    assert run_nodes(plan, memory, modules, part.survey) is None
    part.choose(LookLimits.part_s)
    inputs = {n: memory.buffers[n] for n, buffer in enumerate(plan.buffers) if buffer.kind == "input"}
    used = memory_of(plan, contents, inputs)
    assert run_nodes(plan, used, modules, part.run(used)) is None
    told = [part.told(output) for output in range(len(plan.outputs))]
    executed_s, began = time.process_time() - began, time.process_time()
    sliced = SlicedReference(task, inputs)
    sample = sliced.sample(told, LookLimits.slices_s, np.random.default_rng(0))
    sliced.expect(sample)
    compared_s = time.process_time() - began
    programs: set[int] = set()
    for view, elements in zip(plan.outputs, sample.elements, strict=True):
        buffer = memory.buffers[view.buffer]
        strides = [stride * view.item_bytes // buffer.unit(1 << 30) for stride in view.strides]
        start = (PADDING + view.offset * view.item_bytes) // buffer.unit(1 << 30)
        writers = part.writers[view.buffer].as_strided(view.shape, strides, start)
        programs |= set(writers[torch.unravel_index(elements, view.shape)].tolist())
    found = 1 - (1 - 1 / RARE) ** len(programs)
    print(
        f"{name} {case.name}: {executed_s:.1f} s for {[len(some) for some in part.chosen]} programs, "
        f"{compared_s:.1f} s to compare {len(programs)} of them; a fault in 1 of {RARE} is found with {found:.3f}",
        flush=True,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for argument in sys.argv[1:] or ("matmul", "attention_causal"):
        measure(argument)
