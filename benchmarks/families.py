"""Attention, shared prompts and convolution on a GPU: vendors' kernels and our first kernels, in one command.

    python -m benchmarks.families [--seconds 540] [--parts attention,gqa,shared,conv] [--json families.json]

Attention on 32k tokens (lengths 4k to 32k, heads of 128 and 64, causal and not), grouped queries; shared prompts,
forward and forward + backward, at the sizes of the published comparison; twelve convolutions in IEEE float32, TF32 and
bfloat16, with the memory that each method takes beyond its inputs and its output. Every time is the median of CUDA
events around one call, caches flushed before each: work of the host counts where the GPU waits for it (shared prompts
read their offsets, which is about 0.1 ms). Every result is compared with the first method's of its row.

Each part runs in processes of its own, vendors' kernels before our first kernels, and what has to be compiled anew for
every shape last: what fails, or takes longer than its share of the time, is named and the rest goes on. `--device cpu`
tries the script itself, on the tasks' check cases.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Task, describe
from evo_kernel.types import CaseKind

TASKS = {
    "attention": ("attention_full", "attention_causal"),
    "shared": ("shared_prompt", "shared_prompt_backward"),
    "gqa": ("gqa",),
    "conv": ("conv2d", "conv2d_channels_last", "conv2d_tf32", "conv2d_bf16"),
}
SHARED = (  # (responses, rows of the prompt, rows of each response): measured elsewhere on an H200, then as published
    (16, 2048, 1024), (16, 8192, 1024), (32, 8192, 1024), (32, 8192, 512),
    (28, 4096, 2048), (28, 16384, 2048), (16, 32768, 2048), (28, 32768, 2048),
)  # fmt: skip
BASELINES, FIRST_KERNELS, FLEX = "baselines", "first kernels", "flex"
SHARES = {BASELINES: 3, FIRST_KERNELS: 2, FLEX: 1}
"""Of the time that is left, by what a process measures; each may use twice its share."""
MOST_S, MOST_RUNS = 0.5, 15
"""Of timed calls for one figure: whichever is reached first, but two calls at least."""
APART = 0.03
"""A relative Frobenius distance from the first method's result above this is marked: bfloat16 stays below 0.01."""


class Clock:
    """Times calls on one device; caches are flushed before each."""

    def __init__(self, device: str) -> None:
        self.device, self.cuda = device, device != "cpu"
        self._flush = torch.empty((256 << 20) if self.cuda else 1, dtype=torch.int8, device=device)

    def _once(self, work: Callable[[], Any]) -> float:
        """Seconds of one call; its result is dropped at once."""
        if not self.cuda:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()  # also keeps the GPU busy while the host gets ahead
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def time(self, work: Callable[[], Any]) -> tuple[float, int]:
        """Median milliseconds, and of how many calls. The first call after a warm one counts."""
        taken: list[float] = []
        while len(taken) < 2 or (len(taken) < MOST_RUNS and sum(taken) < MOST_S):
            taken.append(self._once(work))
        return statistics.median(taken) * 1e3, len(taken)

    def extra_mib(self, work: Callable[[], Any]) -> tuple[float | None, Any]:
        """Memory at its peak during a call beyond what it returns and what was there before, and the result."""
        if not self.cuda:
            return None, work()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = work()
        torch.cuda.synchronize()
        kept = sum(part.numel() * part.element_size() for part in parts_of(result))
        return (torch.cuda.max_memory_allocated() - before - kept) / 2**20, result


def parts_of(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def distance(result: Any, wanted: tuple[torch.Tensor, ...]) -> float:
    """The largest relative Frobenius distance over all outputs."""

    def of(got: torch.Tensor, part: torch.Tensor) -> float:
        return float((got.float() - part.float()).norm() / part.float().norm().clamp(min=1e-30))

    return max(of(got, part) for got, part in zip(parts_of(result), wanted, strict=True))


def cases_of(task: Task, device: str) -> Sequence[Case]:
    if device == "cpu":
        return task.cases_of(CaseKind.CHECK)
    if task.name.startswith("shared_prompt"):
        sizes = {"ragged": 0, "h": 32, "hk": 8, "d": 128}
        return [
            Case(f"N{n} P{p} R{r}", CaseKind.SEARCH, {"n": n, "p": p, "r": r, **sizes}) for n, p, r in SHARED
        ]  # fmt: skip
    found = [case for case in task.cases if case.kind is not CaseKind.CHECK]
    if task.name.startswith("conv2d"):
        return sorted(found, key=lambda case: int(case.name.removeprefix("conv")))
    return sorted(found, key=lambda case: (-case["d"], case["s"]))


def seeds_of(task: Task) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The `run` of every first kernel in Triton beside the task."""
    for path in sorted(task.path.parent.glob("seed*.py")):
        if path.stem == "seed_cuda":
            continue
        spec = importlib.util.spec_from_file_location(f"{task.name}_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield path.stem, module.run


def measured(clock: Clock, function: Callable[..., Any], inputs: tuple[Any, ...], wanted: Any, flops: float) -> dict:
    """A row's figures, or why there are none. `wanted`: the first method's outputs, if there are any."""
    try:
        with torch.no_grad():
            function(*inputs)  # libraries choose, and compilers compile, on a first call
            mib, result = clock.extra_mib(lambda: function(*inputs))
            off = distance(result, wanted) if wanted is not None else 0.0
            made = parts_of(result) if wanted is None else None
            del result
            ms, runs = clock.time(lambda: function(*inputs))
    # A vendor path may be missing for a dtype, shape or build, and says so in many ways.
    except Exception as error:  # noqa: BLE001
        if clock.cuda:
            torch.cuda.empty_cache()  # what ran out of memory left it in pieces
        return {"error": describe(error)[:300]}
    return {"ms": ms, "runs": runs, "tflops": flops / ms / 1e9, "extra_mib": mib, "off": off, "made": made}


def measure_part(part: str, which: str, device: str, out: Path) -> None:
    """In a child: every row of a part, each a line of JSON as soon as it is there."""
    clock = Clock(device)
    with out.open("a") as lines:
        tasks = [load(name) for name in TASKS[part]]
        # Case by case through all tasks: where time runs out, what there is can be compared.
        for together in zip(*([(task, case) for case in cases_of(task, device)] for task in tasks), strict=True):
            for row in chain.from_iterable(rows_of(clock, task, case, which) for task, case in together):
                lines.write(json.dumps({"part": part, **row}) + "\n")
                lines.flush()


def rows_of(clock: Clock, task: Task, case: Case, which: str) -> Iterator[dict[str, Any]]:
    torch.backends.cuda.matmul.allow_tf32 = task.tolerance.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = task.tolerance.precision == "tf32"
    torch.backends.cudnn.benchmark = True  # cuDNN's fastest algorithm for each shape, found by trying
    generator = torch.Generator(clock.device).manual_seed(1)
    # The file's own function: what the host knows need not agree with other processes here, and is drawn on the GPU.
    inputs = task.inputs_function(case, generator, torch.device(clock.device))
    first = next(iter(task.baselines))  # always there, for comparison
    listed = [(name, function) for name, function in task.baselines.items() if (name == FLEX) == (which == FLEX)]
    methods = list(seeds_of(task)) if which == FIRST_KERNELS else listed
    if which != BASELINES:
        methods = [(first, task.baselines[first]), *methods] if methods else []
    wanted = None
    for number, (name, function) in enumerate(methods):
        if clock.cuda:
            torch.compiler.reset()  # one shape at a time: no limit on recompiling
        row = measured(clock, function, inputs, wanted, task.flops(case) or 0.0)
        made = row.pop("made", None)
        wanted = made if wanted is None else wanted
        if number == 0 and which != BASELINES:
            continue
        yield {"task": task.name, "case": case.name, "method": name, **row}


def table(rows: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], str], title: str) -> None:
    """Cases down, methods across."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    print(f"\n{title}\n| case | " + " | ".join(methods) + " |\n" + "| --- " * (len(methods) + 1) + "|")
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = {row["method"]: value(row) for row in rows if row["case"] == case}
        print(f"| {case} | " + " | ".join(cells.get(method, "") for method in methods) + " |")


def cell(row: dict[str, Any]) -> str:
    """Milliseconds and TFLOP/s, and for convolutions the memory."""
    if "error" in row:
        return "failed"
    mark = " APART" if row["off"] > APART else ""
    extra = f", {row['extra_mib']:.0f} MiB" if row["part"] == "conv" and row["extra_mib"] is not None else ""
    return f"{row['ms']:.3f} ms, {row['tflops']:.1f}{extra}{mark}"


def report(rows: Sequence[dict[str, Any]]) -> None:
    for name in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == name]
        table(mine, cell, f"{name}: median ms, TFLOP/s" + (", extra memory" if mine[0]["part"] == "conv" else ""))
    both = {(row["case"], row["method"]): row for row in rows if row["task"] == "shared_prompt" and "ms" in row}
    sums = []
    for row in rows:
        if row["task"] == "shared_prompt_backward" and "ms" in row:
            own = row["method"].startswith(
                "seed"
            )  # baselines' gradients hold their forward pass; a first kernel's do not
            forward = both.get((row["case"], row["method"])) if own else None
            if forward or not own:
                sums.append({**row, "ms": row["ms"] + (forward["ms"] if forward else 0.0)})
    if sums:
        table(sums, lambda row: f"{row['ms']:.2f}", "shared prompts, forward + backward: ms")
    for row in rows:
        if "error" in row:
            print(f"failed: {row['task']} {row['case']} {row['method']}: {row['error']}")


def child(part: str, which: str, device: str, out: Path, limit_s: float) -> str:
    """Run a part; why it ended early, or an empty string."""
    command = [sys.executable, "-m", "benchmarks.families", "--device", device, "--child", part, which, str(out)]
    try:
        done = subprocess.run(command, timeout=limit_s, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        return f"{part}, {which}: its share of the time, {limit_s:.0f} s, was not enough"
    if done.returncode:
        return f"{part}, {which}: ended with {done.returncode}: {done.stderr.strip()[-600:]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540, help="limit for everything")
    parser.add_argument("--parts", default=",".join(TASKS), help="some of " + ", ".join(TASKS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--child", nargs=3, metavar=("PART", "WHICH", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        part, which, out = options.child
        measure_part(part, which, options.device, Path(out))
        return
    parts = options.parts.split(",")
    unknown = sorted(set(parts) - set(TASKS))
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(TASKS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --device cpu tries the script at small sizes")
    run_all(parts, options.device, options.seconds, options.json)


def run_all(parts: Sequence[str], device: str, seconds: float, json_file: Path | None) -> None:
    begin, notes = time.monotonic(), []
    kinds = [kind for kind in SHARES if device == "cuda" or kind != FIRST_KERNELS]  # Triton compiles for no CPU
    jobs = [(part, which) for which in kinds for part in parts if (part, which) != ("conv", FLEX)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows")
        out.touch()
        for number, (part, which) in enumerate(jobs):
            left = seconds - (time.monotonic() - begin) - 5
            if left < 10:
                notes.append(f"{part}, {which}: no time left")
                continue
            waiting = sum(SHARES[kind] for _, kind in jobs[number:])
            note = child(part, which, device, out, left * min(1.0, 2 * SHARES[which] / waiting))
            notes += [note] if note else []
            print(f"{part}, {which}: {time.monotonic() - begin:.0f} s since the start", file=sys.stderr, flush=True)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    order = [name for names in TASKS.values() for name in names]
    rows.sort(key=lambda row: order.index(row["task"]))  # stable: methods stay in order
    machine = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    print(f"{machine}, torch {torch.__version__}, {time.monotonic() - begin:.0f} s")
    if json_file is not None:
        text = json.dumps({"machine": machine, "torch": torch.__version__, "notes": notes, "rows": rows}, indent=1)
        json_file.write_text(text)
    report(rows)
    for note in notes:
        print(f"NOTE {note}")


if __name__ == "__main__":
    main()
