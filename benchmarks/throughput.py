"""Verified candidates a second on one GPU.

Distinct kernels (walks of the rewriter from the seed, in many knob settings) go through the judge: recorded on all
cores, checked and timed on the GPU at search precision, no tuning. A candidate counts when it has its verdict. Ends
after --seconds a task, so that it fits any machine's time.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.variants import CASES, narrowed, parser, variants, write_json
from evo_kernel.errors import EvoKernelError
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge
from evo_kernel.fitness.runners.choose import open_runner
from evo_kernel.tasks.task import Task
from evo_kernel.types import Evaluation, Purpose, Source

TARGETS = {"softmax": 20.0, "rmsnorm": 20.0, "matmul": 5.0, "attention": 2.0}


def main() -> None:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    options = parser(__doc__)
    options.add_argument("--tasks", default=",".join(CASES), help="comma-separated")
    options.add_argument("--candidates", type=int, default=600, help="distinct sources a task")
    options.add_argument("--seconds", type=float, default=60.0, help="a task")
    options.add_argument("--threads", type=int, default=2 * (os.cpu_count() or 1))
    options.add_argument("--gpus", default="1")
    options.add_argument("--device", default="cuda")
    chosen = options.parse_args()
    results: dict[str, Any] = {"command": sys.argv}
    titles = ("task", "verdicts", "passed", "plans", "/s", "target", "GPU busy", "ms on GPU")
    print("{:<11}{:>9}{:>8}{:>7}{:>8}{:>8}{:>10}{:>11}".format(*titles))
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.tasks.split(","):
            try:
                task = narrowed(name, Path(folder))
                results[name] = one = measured(task, chosen)
                print_row(name, one)
            except Exception:  # noqa: BLE001 (the other tasks' figures are still wanted)
                results[name] = {"error": traceback.format_exc()}
                print(f"{name}: failed\n{results[name]['error']}", flush=True)
            write_json(chosen.json, results)


def measured(task: Task, chosen: Any) -> dict[str, Any]:
    """Judge variants until the time is over."""
    began = time.monotonic()
    sources = variants(task, chosen.candidates, chosen.seed)
    made_s = time.monotonic() - began
    settings = JudgeSettings(tune_plans=0, deadline_s=20.0)
    with PlanJudge(task, open_runner(task, chosen.device, 20.0, chosen.gpus), settings) as judge:
        judge.start()
        warm_s = -time.monotonic()
        first = judge.evaluate(sources[0], Purpose.SCORE)
        warm_s += time.monotonic()
        if not first.passed:
            raise RuntimeError(f"the seed of {task.name} does not pass: {first.status}: {first.reason}")
        runner: Any = judge._runner
        before = dict(getattr(runner, "spent_s", {}))
        done, elapsed = evaluated(judge, sources[1:], chosen.threads, chosen.seconds)
        spent = {k: v - before.get(k, 0.0) for k, v in dict(getattr(runner, "spent_s", {})).items()}
    statuses = Counter(str(e.status) for _, e in done)
    plans = {(case, plan) for _, e in done for case, _, plan in e.plans}
    reasons: dict[str, list[str]] = defaultdict(list)
    for _, e in done:
        if not e.passed:
            reasons[str(e.status)].append(e.reason[:200])
    return {
        "sources": len(sources), "making_s": made_s, "first_s": warm_s, "elapsed_s": elapsed,
        "verdicts": len(done), "passed": statuses["passed"], "statuses": dict(statuses), "plans": len(plans),
        "per_s": len(done) / elapsed, "target_per_s": TARGETS[task.name], "spent_s": spent,
        "busy": spent.get("request", 0.0) / elapsed,
        "gpu_ms": 1e3 * spent.get("request", 0.0) / max(1, len(done)),
        "wall_ms_of_one": 1e3 * statistics.median(e.wall_s for _, e in done) if done else None,
        "seed_us": first.measurements[0].median_us, "baselines_us": dict(first.measurements[0].baselines_us),
        "best_us": min((e.measurements[0].median_us for _, e in done if e.passed), default=None),
        "samples": statistics.median([e.measurements[0].n for _, e in done if e.passed] or [0]),
        "respawns": getattr(runner, "respawns", None),
        "reasons": {status: Counter(texts).most_common(8) for status, texts in reasons.items()},
    }  # fmt: skip


def evaluated(
    judge: PlanJudge, sources: list[Source], threads: int, seconds: float
) -> tuple[list[tuple[Source, Evaluation]], float]:
    """Evaluations that ended within the time, and how long it took."""
    began = time.monotonic()
    done: list[tuple[Source, Evaluation]] = []
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
            done.append((source, evaluation))

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
        f"{name:<11}{one['verdicts']:>9}{one['passed']:>8}{one['plans']:>7}{one['per_s']:>8.1f}"
        f"{one['target_per_s']:>8.0f}{one['busy']:>10.0%}{one['gpu_ms']:>11.1f}",
        flush=True,
    )
    phases = ", ".join(f"{k} {1e3 * v / max(1, one['verdicts']):.2f}" for k, v in sorted(one["spent_s"].items()))
    print(f"    ms of the GPU process a candidate: {phases}")
    print(f"    statuses {one['statuses']}; best {one['best_us']} us, {one['samples']} samples")
    print(f"    seed {one['seed_us']:.1f} us, baselines {one['baselines_us']}")
    print(f"    wall ms of one evaluation {one['wall_ms_of_one']}; first request {one['first_s']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
