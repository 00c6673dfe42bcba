"""What a benchmark's own harness says of a kernel, which is written as the benchmark's file first.

A program: its argument is a file with the arguments of `asked` as JSON. The last line of its output is the answer.
"""

from __future__ import annotations

import contextlib
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


def asked(
    spec: str, kernel: str, folder: str, device: str, ask: bool, module: str = "", expected_us: float | None = None
) -> Stock:
    """Write the kernel into `folder` as a solution of the problem; then, if wanted, ask KernelBench's harness about it.

    `module`: a file for the text that the solution is written around, which takes seconds to make. `expected_us`:
    kernel and reference together, where they were measured. Raises UserError, and what a harness does.
    """
    source, place = Source(kernel), Path(folder)
    kept = written_module(module, source)
    text = kept or solution_text(spec, source, device)
    if spec.startswith("kernelbench:"):
        (place / kernelbench_solution(spec, text).file_name(0)).unlink(missing_ok=True)  # of an earlier kernel
    else:
        for name in (f"{Path(spec).name}.py", PREDICTIONS):  # of an earlier kernel, as TritonBench wants them
            (place / name).unlink(missing_ok=True)
    write_solution(spec, text, place)
    if module and kept is None:
        Path(module).write_text(json.dumps({"kernel": source.sha256, "text": text}), encoding="utf-8")
    return _asked(spec, text, device, expected_us) if ask else Stock(NONE)


def write_best(spec: str, population: str, folder: str, module: str, device: str) -> None:
    """Write the best kernel of a population as a solution; where that fails, who asks about it is told why."""
    source = best_source(Path(population))
    if source is not None:
        with contextlib.suppress(EvoKernelError):
            asked(spec, source.text, folder, device, False, module)


def best_source(population: Path) -> Source | None:
    """The champion's source, or the best one's, as it was scored; None where nothing passed."""
    from populations.reading import PopulationReader

    if not population.exists():
        return None
    with PopulationReader(population) as reader:
        best = reader.leader()
        return reader.relative(best.candidate).source if best is not None else None


def written_module(module: str, source: Source) -> str | None:
    """The text that a solution of this kernel was written around; None where there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        written = json.loads(Path(module).read_text(encoding="utf-8"))
        if written["kernel"] == source.sha256:
            return str(written["text"])
    return None


def _asked(spec: str, text: str, device: str, expected_us: float | None) -> Stock:
    """What KernelBench's harness says of a module with `run`."""
    solution = kernelbench_solution(spec, text)
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
