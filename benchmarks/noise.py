"""How steady the clock is: the same plan against itself, and against `triton.testing.do_bench`.

For each built-in seed on its first search case: pairs of evaluations of the same plan (|ratio - 1| by percentiles, at
search precision and at that of claims), paired comparisons of the plan with itself (a verdict "faster" or "slower" is
false), and the time that do_bench finds for the same source run directly, in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import FIGURES_OF
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, record_case
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, Measurement, Source

DO_BENCH = """
import importlib.util, sys, torch, triton
from evo_kernel.tasks.loading import load
task = load(sys.argv[1])
case = task.case(sys.argv[2])
spec = importlib.util.spec_from_file_location("seed", sys.argv[3])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
inputs = task.inputs(case, torch.Generator("cuda").manual_seed(1), "cuda")
module.run(*inputs)
print(1e3 * triton.testing.do_bench(lambda: module.run(*inputs), warmup=50, rep=200, return_mode="median"))
"""


def main() -> None:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", default=",".join(FIGURES_OF))
    options.add_argument("--pairs", type=int, default=40, help="pairs of evaluations of each task")
    options.add_argument("--comparisons", type=int, default=5, help="paired A/A comparisons of each task")
    options.add_argument("--seconds", type=float, default=240.0, help="in all: what is left over is skipped")
    chosen = options.parse_args()
    end = time.monotonic() + chosen.seconds
    verdicts: Counter[str] = Counter()
    compiler = Compiler(90, 60.0)
    recorder = Recorder(compiler, 90, 60.0)
    print(f"{'task':<14}{'us':>9}{'do_bench':>10}{'ratio':>8}{'A/A p50 p99 search':>22}{'p50 p99 claim':>18}  verdicts")
    try:
        for name in chosen.tasks.split(","):
            try:
                found = noise_of(load(name), recorder, chosen.pairs, chosen.comparisons, end)
                print_row(name, found)
                verdicts.update(found["verdicts"])
            except Exception:  # noqa: BLE001 (the other tasks' figures are still wanted)
                print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
    finally:
        recorder.close()
        compiler.close()
    false = verdicts["faster"] + verdicts["slower"]
    print(f"paired A/A: {false} false verdicts of {sum(verdicts.values())} ({dict(verdicts)})")


def noise_of(task: Task, recorder: Recorder, pairs: int, comparisons: int, end: float) -> dict[str, Any]:
    assert task.seed is not None
    case = task.cases_of(CaseKind.SEARCH)[0]
    plan = recorder.record(task.seed, [record_case(task, case)], [()]).plans[(case.name, ())]
    if isinstance(plan, RecordFault):
        raise RuntimeError(plan.reason)
    runner = CudaRunner(task, 0, 30.0)
    try:
        runner.start()
        search = ratios(runner, plan, case, pairs, "search", end)
        claim = ratios(runner, plan, case, pairs, "claim", end)
        verdicts: Counter[str] = Counter()
        spread: list[float] = []
        for _ in range(comparisons):
            if time.monotonic() > end:
                break
            found = runner.pair(plan, plan, case, 17, checked=False)
            if isinstance(found, Checked):
                raise RuntimeError(found.reason)
            verdicts[str(found.verdict)] += 1
            spread.append(abs(found.ratio - 1))
        time_us = measured(runner, plan, case, "claim")
    finally:
        runner.close()
    return {
        "us": time_us.median_us, "clock_mhz": time_us.clock_mhz, "power_w": time_us.power_w, "drift": time_us.drift,
        "search": percentiles(search), "claim": percentiles(claim), "paired": percentiles(spread),
        "verdicts": dict(verdicts), "do_bench_us": do_bench(task, task.seed, case),
    }  # fmt: skip


def ratios(runner: CudaRunner, plan: CompiledPlan, case: Case, pairs: int, precision: str, end: float) -> list[float]:
    """|ratio - 1| of pairs of evaluations, each a request of its own."""
    found: list[float] = []
    for _ in range(pairs):
        if time.monotonic() > end:
            break
        first, second = (measured(runner, plan, case, precision).median_us for _ in range(2))
        found.append(abs(first / second - 1))
    return found


def measured(runner: CudaRunner, plan: CompiledPlan, case: Case, precision: str) -> Measurement:
    found = runner.measure(plan, case, 17, checked=False, precision=precision)
    if isinstance(found, Checked):
        raise RuntimeError(f"{found.status}: {found.reason}")
    return found


def percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {"n": 0}
    p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99))
    return {"n": len(values), "p50": float(p50), "p90": float(p90), "p99": float(p99), "max": max(values)}


def do_bench(task: Task, source: Source, case: Case) -> float | str:
    """What Triton's own benchmark says, over three processes; a text when it does not run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.py"
        path.write_text(source.text)
        command = [sys.executable, "-P", "-c", DO_BENCH, task.spec, case.name, str(path)]
        found = []
        for _ in range(3):
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                return done.stderr[-500:]
            found.append(float(done.stdout.split()[-1]))
    return statistics.median(found)


def print_row(name: str, one: dict[str, Any]) -> None:
    other = one["do_bench_us"]
    told = f"{other:>10.1f}{one['us'] / other:>8.3f}" if isinstance(other, float) else f"{'failed':>10}{'':>8}"
    both = (one["search"], one["claim"])
    shares = "".join(f"{1e2 * p.get('p50', np.nan):>11.2f}{1e2 * p.get('p99', np.nan):>8.2f}%" for p in both)
    print(f"{name:<14}{one['us']:>9.1f}{told}{shares}  {one['verdicts']}", flush=True)
    print(f"    {one['clock_mhz']} MHz, {one['power_w']} W, drift {one['drift']}, paired {one['paired']}", flush=True)
    if not isinstance(other, float):
        print(f"    do_bench: {other}", flush=True)


if __name__ == "__main__":
    main()
