"""What a benchmark's own harness says of a kernel, which is written as the benchmark's file first.

A program: its argument is a file with the arguments of `asked` as JSON. The last line of its output is the answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from evo_kernel.app.solutions import kernelbench_solution, solution_text, write_solution
from evo_kernel.app.suite import kernelbench_harness
from evo_kernel.errors import EvoKernelError
from evo_kernel.export.tritonbench import PREDICTIONS
from evo_kernel.observe.harness_verdict import NONE, Stock
from evo_kernel.tasks.importers import kernelbench
from evo_kernel.tasks.importers.checkout import read_text
from evo_kernel.tasks.loading import load, problem_of
from evo_kernel.types import CaseKind, Source


def asked(spec: str, kernel: str, folder: str, device: str, ask: bool, expected_us: float | None = None) -> Stock:
    """Write the kernel into `folder` as a solution of the problem; then, if wanted, ask KernelBench's harness about it.

    `expected_us`: kernel and reference together, where they were measured. Raises UserError, and what a harness does.
    """
    text = solution_text(spec, Source(kernel), device)  # what the file is written around: its launches
    if spec.startswith("kernelbench:"):
        return _kernelbench(spec, text, Path(folder), device, ask, expected_us)
    for name in (f"{Path(spec).name}.py", PREDICTIONS):  # of an earlier kernel, as TritonBench wants them
        (Path(folder) / name).unlink(missing_ok=True)
    write_solution(spec, text, Path(folder))
    return Stock(NONE)


def _kernelbench(spec: str, text: str, folder: Path, device: str, ask: bool, expected_us: float | None) -> Stock:
    solution = kernelbench_solution(spec, text)
    (folder / solution.file_name(0)).unlink(missing_ok=True)  # of an earlier kernel
    write_solution(spec, text, folder)
    if not ask:
        return Stock(NONE)
    entry = problem_of(spec)
    source = read_text(entry.path)
    harness = kernelbench_harness.harness_of(kernelbench_harness.home_of(entry.path))
    if device == "cuda":
        timed = kernelbench_harness.timed_within(expected_us)
        return kernelbench_harness.hear(harness, source, solution.text(), device, timed)
    from evo_kernel.fitness.ir import programs  # noqa: F401  the file's launches are executed by it

    sizes = load(spec).cases_of(CaseKind.CHECK)[0].sizes
    small = kernelbench_harness.at_sizes(source, str(entry.path), sizes)
    there = replace(solution, skeleton=kernelbench.skeleton(small))
    return kernelbench_harness.hear(harness, small, there.text(), device)


def main() -> None:
    """One line of JSON on standard output; what others print goes to the errors."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer = os.dup(1)
    os.dup2(2, 1)
    if order["device"] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    began = time.monotonic()
    try:
        stock = asked(**order)
    except EvoKernelError as error:
        stock = Stock(NONE, str(error))
    except Exception as error:  # noqa: BLE001  somebody else's harness may raise anything: that is no verdict
        stock = Stock(NONE, f"its harness failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    told = asdict(stock) | {"seconds": time.monotonic() - began}
    os.write(answer, json.dumps(told).encode() + b"\n")
    sys.stderr.flush()
    os._exit(0)  # threads of the harness, and a context that a kernel has broken, are not waited for


if __name__ == "__main__":
    main()
