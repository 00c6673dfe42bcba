"""Verified candidates a second on one GPU.

Distinct kernels (walks of the rewriter from the seed, in many knob settings) go through the judge: recorded on all
cores, checked and timed on the GPU at search precision, no tuning. A candidate counts when it has its verdict. Ends
after --seconds a task, so that it fits any machine's time. With `--judge ray`, or `--judge spool:DIR` and servers of
that folder, it is they who judge, and what the GPU did is not told. What the first --warm seconds judge is not counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.variants import CASES, narrowed, variants
from evo_kernel.app.judges import AnyJudge, opened_judge
from evo_kernel.errors import EvoKernelError
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge
from evo_kernel.judge_place import LOCAL, judge_place
from evo_kernel.tasks.task import Task
from evo_kernel.types import Evaluation, Purpose, Source

TARGETS = {"softmax": 20.0, "rmsnorm": 20.0, "matmul": 5.0, "attention": 2.0}


def main() -> None:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", default=",".join(CASES), help="comma-separated")
    options.add_argument("--candidates", type=int, default=600, help="distinct sources a task")
    options.add_argument("--seconds", type=float, default=60.0, help="a task")
    options.add_argument("--threads", type=int, default=2 * (os.cpu_count() or 1))
    options.add_argument("--gpus", default="1")
    options.add_argument("--device", default="cuda")
    options.add_argument("--judge", default=LOCAL, type=judge_place, help="local, ray or spool:DIR")
    options.add_argument("--warm", type=float, default=0.0, help="seconds before it counts")
    chosen = options.parse_args()
    print("task       verdicts  passed      /s  target  GPU busy  ms on GPU")
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.tasks.split(","):
            try:
                print_row(name, measured(narrowed(name, Path(folder)), chosen))
            except Exception:  # noqa: BLE001 (the other tasks' figures are still wanted)
                print(f"{name}: failed\n{traceback.format_exc()}", flush=True)


def measured(task: Task, chosen: Any) -> dict[str, Any]:
    """Judge variants until the time is over."""
    sources = variants(task, chosen.candidates)
    settings = JudgeSettings(tune_plans=0, deadline_s=20.0)
    device = chosen.device if chosen.judge == LOCAL else "auto"
    say = partial(print, file=sys.stderr, flush=True)
    with opened_judge(chosen.judge, task, device=device, settings=settings, gpus=chosen.gpus, say=say) as judge:
        if isinstance(judge, PlanJudge):
            judge.start()
        first = judge.evaluate(sources[0], Purpose.SCORE)
        if not first.passed:
            raise RuntimeError(f"the seed of {task.name} does not pass: {first.status}: {first.reason}")
        if chosen.warm:
            warm, _ = evaluated(judge, sources[1:], chosen.threads, chosen.warm)
            sources = sources[len(warm) + chosen.threads :]
        runner: Any = getattr(judge, "_runner", None)
        before = dict(getattr(runner, "spent_s", {}))
        done, elapsed = evaluated(judge, sources[1:], chosen.threads, chosen.seconds)
        spent = {k: v - before.get(k, 0.0) for k, v in dict(getattr(runner, "spent_s", {})).items()}
    statuses = Counter(str(e.status) for e in done)
    return {
        "verdicts": len(done), "passed": statuses["passed"], "statuses": dict(statuses), "per_s": len(done) / elapsed,
        "target_per_s": TARGETS[task.name], "busy": spent.get("request", 0.0) / elapsed,
        "gpu_ms": 1e3 * spent.get("request", 0.0) / max(1, len(done)),
    }  # fmt: skip


def evaluated(judge: AnyJudge, sources: list[Source], threads: int, seconds: float) -> tuple[list[Evaluation], float]:
    """Evaluations that ended within the time, and how long it took."""
    began = time.monotonic()
    done: list[Evaluation] = []
    over = threading.Event()

    def work(source: Source) -> None:
        if over.is_set():
            return
        try:
            evaluation = judge.evaluate(source, Purpose.SCORE)
        except EvoKernelError as error:
            print(f"infra: {str(error)[:500]}", flush=True)
            return
        if not over.is_set():
            done.append(evaluation)

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work, source) for source in sources]
        for future in futures:
            left = seconds - (time.monotonic() - began)
            try:
                future.result(timeout=max(0.0, left))
            except TimeoutError:
                break
        elapsed = time.monotonic() - began
        over.set()
        kept = list(done)
        pool.shutdown(wait=True, cancel_futures=True)
    return kept, elapsed


def print_row(name: str, one: dict[str, Any]) -> None:
    print(
        f"{name:<11}{one['verdicts']:>9}{one['passed']:>8}{one['per_s']:>8.1f}{one['target_per_s']:>8.0f}"
        f"{one['busy']:>10.0%}{one['gpu_ms']:>11.1f}  {one['statuses']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
