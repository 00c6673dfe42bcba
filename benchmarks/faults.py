"""Planted faults among good kernels: every good one must get the verdict that it gets without them.

Illegal addresses, traps, device assertions, endless kernels, allocations beyond the GPU's memory, and workers killed
from outside, spread at random among distinct good softmax kernels; the judge works on them with many threads.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.variants import narrowed, variants
from evo_kernel.errors import EvoKernelError
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge
from evo_kernel.fitness.runners.cuda_runner import CudaRunner
from evo_kernel.tasks.task import Task
from evo_kernel.types import Evaluation, Purpose, Source, Status

KERNELS = {
    "illegal address": ("", "tl.store(y_ptr + (1 << 42), 0.0)", (Status.RUNTIME_ERROR,)),
    "trap": ("", 'tl.inline_asm_elementwise("trap; mov.b32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)',
             (Status.RUNTIME_ERROR,)),
    "assertion": (", debug=True", "tl.device_assert(tl.load(y_ptr) == 123.25)", (Status.RUNTIME_ERROR,)),
    "endless": ("", "while tl.atomic_add(y_ptr, 0.0) != 123.25:\n        pass", (Status.TIMEOUT,)),
}  # fmt: skip
"""By name: options of the launch, one statement of a kernel on the output, and the statuses it may end with."""


def faulty(task: Task, name: str, number: int) -> Source:
    """The seed with one more launch that goes wrong; `number` makes texts distinct."""
    assert task.seed is not None
    text = task.seed.text
    run = text.index("def run(")
    if name == "out of memory":
        allocation = f"    huge = torch.empty({(200 << 30) + number}, dtype=torch.int8, device=x.device)\n"
        touch = "    fault_kernel[(1,)](huge)\n"
        statement = "tl.store(y_ptr, 0)"
    else:
        options, statement, _ = KERNELS[name]
        allocation, touch = "", f"    fault_kernel[(1,)](y{options})\n"
    kernel = f"@triton.jit\ndef fault_kernel(y_ptr):\n    {statement}\n\n\n"
    changed = text[:run] + kernel + text[run:]
    head, _, tail = changed.rpartition("    return y")
    if not head:
        raise ValueError("the seed does not end in `return y`")
    made = f"{head}{allocation}{touch}    return y{tail}\n# fault {number}\n"
    return Source(made if "import torch" in made else "import torch\n" + made)


NAMES = (*KERNELS, "out of memory")


def main() -> None:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--good", type=int, default=500)
    options.add_argument("--faults", type=int, default=50, help="every sixth of them a kill from outside")
    options.add_argument("--deadline", type=float, default=5.0, help="seconds until a kernel counts as endless")
    options.add_argument("--threads", type=int, default=2 * (os.cpu_count() or 1))
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        task = narrowed("softmax", Path(folder))
        good = variants(task, chosen.good, chosen.seed)
        told, alone = judged(task, [("good", source) for source in good], chosen)
        print(f"without faults: {told}", flush=True)
        told, mixed = judged(task, planted(task, good, chosen), chosen)
        print(f"with faults:    {told}", flush=True)
        found = compared(alone, mixed)
    for name, what in found.items():
        print(f"{name}: {what or 'none'}")
    sys.exit(bool(found["differing"] or found["misjudged"]))


def planted(task: Task, good: list[Source], chosen: Any) -> list[tuple[str, Source]]:
    """Good kernels with faults at random places; a kill has the seed's text, which is not judged."""
    rng = np.random.default_rng(chosen.seed)
    every = (*NAMES, "kill")
    faults = []
    for number in range(chosen.faults):
        name = every[number % len(every)]
        faults.append((name, good[0] if name == "kill" else faulty(task, name, number)))
    mixed: list[tuple[str, Source]] = [("good", source) for source in good]
    for fault in faults:
        mixed.insert(int(rng.integers(1, len(mixed) + 1)), fault)
    return mixed


def judged(
    task: Task, work: list[tuple[str, Source]], chosen: Any
) -> tuple[dict[str, Any], dict[str, list[tuple[str, Evaluation | None, str]]]]:
    """Evaluations by source text: (kind, evaluation, error of ours)."""
    runner = CudaRunner(task, 0, chosen.deadline)
    found: dict[str, list[tuple[str, Evaluation | None, str]]] = {}
    done, began = count(1), time.monotonic()

    def one(item: tuple[str, Source]) -> None:
        kind, source = item
        if kind == "kill":
            process = runner._process
            if process is not None:
                os.kill(process.pid, signal.SIGKILL)
            return
        try:
            answer = (kind, judge.evaluate(source, Purpose.SCORE), "")
        except EvoKernelError as error:
            answer = (kind, None, str(error)[:500])
        found.setdefault(source.text, []).append(answer)
        if next(done) % 50 == 0:  # a run that is cut off has said how far it came
            print(f"{time.monotonic() - began:7.1f} s: {answer[0]}, {runner.respawns} respawns", flush=True)

    with PlanJudge(task, runner, JudgeSettings(tune_plans=0)) as judge:
        judge.start()
        judge.evaluate(work[0][1], Purpose.SCORE)
        began = time.monotonic()
        with ThreadPoolExecutor(chosen.threads) as pool:
            list(pool.map(one, work))
        elapsed = time.monotonic() - began
    evaluations = [e for answers in found.values() for _, e, _ in answers]
    statuses = Counter(str(e.status) if e else "infra" for e in evaluations)
    return {
        "seconds": elapsed,
        "judged": len(evaluations),
        "statuses": dict(statuses),
        "respawns": runner.respawns,
    }, found


def compared(alone: dict[str, Any], mixed: dict[str, Any]) -> dict[str, Any]:
    """Where a good kernel's verdict differs, and how each kind of fault ended."""
    differing = []
    for text, answers in alone.items():
        kind, before, trouble = answers[0]
        for _, after, later in mixed.get(text, [(kind, None, "not judged")]):
            if before is None or after is None or before.status != after.status:
                said = [f"{e.status}: {e.reason[:150]}" if e else t for e, t in ((before, trouble), (after, later))]
                differing.append({"before": said[0], "after": said[1]})
    faults: dict[str, Counter[str]] = {}
    misjudged = []
    for answers in mixed.values():
        for kind, evaluation, trouble in answers:
            if kind == "good":
                continue
            status = str(evaluation.status) if evaluation else "infra"
            faults.setdefault(kind, Counter())[status] += 1
            wanted = KERNELS[kind][2] if kind in KERNELS else (Status.RUNTIME_ERROR, Status.REJECTED)
            if evaluation is None or evaluation.status not in wanted:
                misjudged.append(f"{kind}: {evaluation.reason[:300] if evaluation else trouble}")
    return {"differing": differing, "faults": {k: dict(v) for k, v in faults.items()}, "misjudged": misjudged[:20]}


if __name__ == "__main__":
    main()
