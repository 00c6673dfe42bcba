"""What chosen elements of built-in tasks' references cost at real size: drawn, traced, sampled, expected.

python -m benchmarks.slices [TASK ...]

Asked for are 16 random tiles of each output, as programs of a kernel write them: 4 full rows, or about 64 × 64. Seconds
are of wall time, and in brackets of all cores' time, which tells more where the machine is busy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evo_kernel.fitness.slicing import regions
from evo_kernel.fitness.slicing.reference import SlicedReference
from evo_kernel.tasks import loading
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind

BUDGET_S = 1.0
TILES = 16
ROWS = {"softmax", "router_softmax", "layernorm", "rmsnorm", "add_rmsnorm", "cross_entropy", "cross_entropy_backward"}
SHAPES: dict[str, Sequence[int]] = {
    "conv2d": (1, 64, 1, 64),
    "conv2d_tf32": (1, 64, 1, 64),
    "conv2d_bf16": (1, 1, 64, 64),
    "conv2d_channels_last": (1, 1, 64, 64),
    "shared_prompt": (64, 1, 128),
    "shared_prompt_backward": (64, 1, 128),
    "qk_norm": (1, 4, 32, 128),
    "rotary": (1, 4, 32, 128),
    "swiglu": (4, 1024),
}
"""Of a tile, dimension by dimension, where it is not 64 rows by at most 128 columns."""


def tile(task: str, shape: Sequence[int], generator: np.random.Generator) -> torch.Tensor:
    sizes = [1] * max(0, len(shape) - 2) + [4, shape[-1]] if task in ROWS else list(SHAPES.get(task, ()))
    sizes = (sizes or [*[1] * max(0, len(shape) - 2), 64, 128 if len(shape) > 2 else 64])[-len(shape) :]
    region = []
    for size, wanted in zip(shape, sizes, strict=True):
        count = min(size, wanted)
        start = int(generator.integers(size - count + 1))
        region.append(range(start, start + count))
    return regions.flat_of(tuple(region), shape)


def timed(run: Callable[[], Any]) -> tuple[Any, str]:
    wall, processor = time.perf_counter(), time.process_time()
    result = run()
    return result, f"{time.perf_counter() - wall:.2f} ({time.process_time() - processor:.2f})"


def measure(task: Task, case: Case) -> None:
    generator = np.random.default_rng(0)
    inputs, drawn = timed(lambda: task.inputs(case, torch.Generator().manual_seed(1), "cpu"))
    reference = SlicedReference(task, inputs)
    fault, traced = timed(lambda: reference.fault)
    if fault:
        print(f"| {task.name} | {case.name} | {drawn} | {traced} | {fault} |", flush=True)
        return
    shapes = [reference.shape(output) for output in range(reference.outputs)]
    asked = [torch.cat([tile(task.name, shape, generator) for _ in range(TILES)]).unique() for shape in shapes]
    sample, sampled = timed(lambda: reference.sample(asked, BUDGET_S, generator))
    _, expected = timed(lambda: reference.expect(sample))
    shares = ", ".join(
        f"{found.numel() / wanted.numel():.0%}" for found, wanted in zip(sample.elements, asked, strict=True)
    )
    left = "; ".join(filter(None, sample.left_out))
    whole = reference.whole_seconds
    print(
        f"| {task.name} | {case.name} | {drawn} | {traced} | {sampled} | {expected} | {sample.seconds:.2f} | {shares} "
        f"| {left} | {whole:.0f} |",
        flush=True,
    )


def main() -> None:
    builtin = Path(loading.__file__).parent / "builtin"
    names = sys.argv[1:] or sorted(path.parent.name for path in builtin.glob("*/task.py"))
    print(
        "| task | case | draw | trace | sample | expect | estimated | share of elements | left out | whole, estimated |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- | ---: |")
    for name in names:
        task = loading.load(name)
        for case in task.cases_of(CaseKind.SEARCH):
            measure(task, case)


if __name__ == "__main__":
    main()
