"""The ground truth, measured once: every action of 120 parents, and the planted faults, on all GPUs of a machine.

    python -m benchmarks.agents.collect --gpus 4 --seconds 480 --out truth.jsonl.gz

One process a GPU, each with its part of the cores and one task at a time. Rows are appended to part files beside --out
and packed at the end; called again with the same --out it goes on with what is missing (--seconds 0 packs only).
`--device cpu` is a dry run: modeled times stand in for measured ones.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.agents import truth
from benchmarks.agents.problems import SHIPPED, Parent, Planted, Problems, load
from evo_kernel.fitness.gpus import usable_cores

ENDING_S = 15.0  # of --seconds: closing, packing, the summary
OPENINGS = 4  # of a judge that may fail, before a process gives up
COSTS = {"attention": 3.0, "linear_gelu": 3.0, "matmul": 3.0, "cross_entropy": 1.5}
"""About how much longer a parent of these tasks takes than one of the others: shares the time out."""


class Deal:
    """Hands parents out, a task to a process for as long as it has its share of the time. Thread-safe."""

    def __init__(self, parents: list[Parent], planted: list[Planted], total_s: float) -> None:
        self._lock = threading.Lock()
        self._left: dict[str, list[Parent]] = defaultdict(list)
        for parent in parents:
            self._left[parent.task].append(parent)
        self._planted: dict[str, list[Planted]] = defaultdict(list)
        for one in planted:
            self._planted[one.task].append(one)
        for name in self._planted:
            self._left.setdefault(name, [])
        weights = {name: COSTS.get(name, 1.0) * max(len(left), 1) for name, left in self._left.items()}
        whole = sum(weights.values()) or 1.0
        self._share_s = {name: total_s * weight / whole for name, weight in weights.items()}
        self._used_s: dict[str, float] = defaultdict(float)
        self._at: dict[str, int] = defaultdict(int)  # processes that are with a task

    def next(self, task: str | None, used_s: float) -> tuple[str, Parent | None, list[Planted]] | None:
        """(task, parent, faults to look at); None when nothing is left. `used_s`: on `task` since the last call."""
        with self._lock:
            if task is not None:
                self._used_s[task] += used_s
                if self._left[task] and (self._used_s[task] < self._share_s[task] or not self._others(task)):
                    return self._given(task)
                self._at[task] -= 1
            waiting = [name for name in self._left if self._left[name] or self._planted[name]]
            if not waiting:
                return None
            chosen = max(waiting, key=self._behind)
            self._at[chosen] += 1
            return self._given(chosen)

    def _others(self, task: str) -> bool:
        return any(left for name, left in self._left.items() if name != task)

    def _behind(self, name: str) -> float:
        """What is left of a task's time, for each process that would be with it."""
        return (self._share_s[name] - self._used_s[name]) / (1 + self._at[name])

    def _given(self, name: str) -> tuple[str, Parent | None, list[Planted]]:
        left = self._left[name]
        return name, left.pop(0) if left else None, self._planted.pop(name, []) if name in self._planted else []


def main(arguments: list[str] | None = None) -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--seconds", type=float, default=480.0, help="in all; 0: only pack what is there")
    made.add_argument("--gpus", type=int, default=1)
    made.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    made.add_argument("--problems", type=Path, default=SHIPPED)
    made.add_argument("--parents", type=int, default=0, help="only so many, tasks in turn; 0: all")
    made.add_argument("--planted", type=int, default=-1, help="only so many faults; -1: all")
    made.add_argument("--tune-plans", type=int, default=4, help="knob settings tried for a child")
    made.add_argument("--parent-plans", type=int, default=32, help="and for a parent")
    made.add_argument("--threads", type=int, default=0, help="a process; 0: one and a half a core")
    chosen = made.parse_args(arguments)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    problems = load(chosen.problems)
    if chosen.seconds > 0:
        collect(chosen, problems, began)
    troubles = truth.of_kind(truth.read(chosen.out), "trouble")
    rows = truth.merge(chosen.out)
    print_summary(rows, troubles, problems, time.monotonic() - began)
    print(f"{len(rows)} rows in {chosen.out}: {chosen.out.stat().st_size} bytes")


def collect(chosen: argparse.Namespace, problems: Problems, began: float) -> None:
    end = began + chosen.seconds - ENDING_S
    rows = truth.read(chosen.out)
    done = {row["id"] for row in rows if row["kind"] in ("done", "planted")}
    parents = in_turn(problems.parents)[: chosen.parents or None]
    planted = problems.planted if chosen.planted < 0 else problems.planted[: chosen.planted]
    deal = Deal(
        [one for one in parents if one.id not in done],
        [one for one in planted if one.id not in done],
        chosen.gpus * (end - time.monotonic()),
    )
    known: dict[str, dict[str, truth.Row]] = defaultdict(dict)
    for row in rows:
        if row["kind"] == "parent":
            known[row["id"]][row["id"]] = row
        elif row["kind"] == "profile":
            known[row["id"]]["profile"] = row
        elif row["kind"] == "action":
            known[row["parent"]][row["key"]] = row
    print(f"{len(parents)} parents, {len(done)} done before; {end - time.monotonic():.0f} s", flush=True)
    context = multiprocessing.get_context("spawn")
    served: list[threading.Thread] = []
    processes = []
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(chosen.gpus)))).split(",")
    cores, each = sorted(os.sched_getaffinity(0)), max(1, usable_cores() // chosen.gpus)
    for number in range(chosen.gpus):
        mine, theirs = context.Pipe()
        own = cores[number * len(cores) // chosen.gpus :][:each]
        threads = chosen.threads or 3 * len(own) // 2 + 2
        settings = {
            "device": chosen.device, "tune_plans": chosen.tune_plans, "parent_plans": chosen.parent_plans,
            "threads": threads,
        }  # fmt: skip
        gpu = gpus[number] if number < len(gpus) else str(number)
        process = context.Process(
            target=work,
            args=(theirs, gpu, own, settings, truth.part(chosen.out, number), end),
        )
        process.start()
        theirs.close()
        thread = threading.Thread(target=serve, args=(mine, deal, known, end, number), daemon=True)
        thread.start()
        processes.append(process)
        served.append(thread)
    for process in processes:
        process.join(max(1.0, end + ENDING_S / 2 - time.monotonic()))
        if process.is_alive():
            print(f"process {process.pid} did not end in time: terminated", flush=True)
            process.terminate()
            process.join(3.0)


def in_turn(parents: tuple[Parent, ...]) -> list[Parent]:
    """The same parents, tasks in turn: any first part of them has all tasks."""
    place: dict[str, int] = defaultdict(int)
    ranked = []
    for parent in parents:
        ranked.append((place[parent.task], parent))
        place[parent.task] += 1
    return [parent for _, parent in sorted(ranked, key=lambda pair: pair[0])]


def serve(pipe: Connection, deal: Deal, known: Mapping[str, Any], end: float, number: int) -> None:
    """Answer one process's questions for more, until it is gone."""
    try:
        while True:
            asked = pipe.recv()
            if "said" in asked:
                print(f"[{number}] {asked['said']}", flush=True)
                continue
            given = None if time.monotonic() > end else deal.next(asked["task"], asked["used_s"])
            pipe.send((given, dict(known.get(given[1].id, {})) if given and given[1] else {}))
    except (EOFError, OSError):
        return


# -- one process a GPU -----------------------------------------------------------------------------------------------


def work(pipe: Connection, gpu: str, cores: list[int], settings: dict[str, Any], out: Path, end: float) -> None:
    """The life of a process: a task at a time, parents as long as there are any and the time is not over."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    if cores:
        os.sched_setaffinity(0, cores)
    from benchmarks.agents.measuring import Bench, Want, Writer  # after the GPU is chosen

    want, write, over = Want(**settings), Writer(out), threading.Event()
    threading.Thread(target=_ring, args=(over, end), daemon=True).start()
    bench: Bench | None = None
    since, failures = time.monotonic(), 0
    try:
        while True:
            now = time.monotonic()
            pipe.send({"task": bench.name if bench else None, "used_s": now - since})
            since = now
            given, known = pipe.recv()
            if given is None:
                break
            name, parent, planted = given
            if bench is None or bench.name != name:
                if bench is not None:
                    _leave(bench, pipe, end)
                bench, began = None, time.monotonic()
                try:
                    bench = Bench(name, want, write, over)
                except Exception:  # noqa: BLE001 (another task may open; what was dealt is left for a later call)
                    failures += 1
                    pipe.send({"said": f"{name} does not open on GPU {gpu}\n{traceback.format_exc()}"})
                    if failures == OPENINGS:
                        break
                    continue
                write({"kind": "environment", "environment": bench.environment})
                pipe.send({"said": f"{name} on GPU {gpu}, open after {time.monotonic() - began:.1f} s"})
            for one in planted:
                bench.planted(one)
            if parent is not None:
                bench.parent(parent, known)
            bench.drain(want.threads, end)
    except Exception:  # noqa: BLE001 (the other processes' rows are still wanted)
        pipe.send({"said": f"failed\n{traceback.format_exc()}"})
    if bench is not None:
        _leave(bench, pipe, end)
    pipe.close()
    os._exit(0)  # threads that are cut off in the middle of something are not waited for


def _leave(bench: Any, pipe: Connection, end: float) -> None:
    bench.drain(1, end)
    pipe.send({"said": f"{bench.name} ended, its evaluations had the GPU for {bench.gpu_s:.0f} s"})
    bench.close()


def _ring(over: threading.Event, end: float) -> None:
    over.wait(max(0.0, end - time.monotonic()))
    over.set()


# -- the summary -----------------------------------------------------------------------------------------------------


def print_summary(rows: list[truth.Row], troubles: list[truth.Row], problems: Problems, elapsed_s: float) -> None:
    for row in truth.of_kind(rows, "environment"):
        one = row["environment"]
        print(f"{one['kind']} on {one['device']}, driver {one['driver']}, torch {one['torch']}, triton {one['triton']}")
    titles = ("task", "parents", "done", "actions", "passed", "witnessed", "faster", "slower", "best gain", "A/A off")
    print("{:<14}{:>8}{:>6}{:>9}{:>8}{:>11}{:>8}{:>8}{:>11}{:>9}".format(*titles))
    parents, done = truth.of_kind(rows, "parent"), truth.of_kind(rows, "done")
    actions = truth.of_kind(rows, "action")
    for name in dict.fromkeys(one.task for one in problems.parents):
        print_task(name, *([row for row in some if row["task"] == name] for some in (parents, done, actions)))
    print(
        "gains by pairs with the parent, geometric mean over cases; best gain: of the best action, median over parents;"
    )
    print("A/A off: a parent paired with itself, the largest |ratio - 1|")
    for status, count in Counter(row["status"] for row in actions).most_common():
        print(f"    {count:>5} actions {status}")
    seen = truth.of_kind(rows, "planted")
    as_planted = sum(row["seen"] == row["category"] for row in seen)
    print(f"{len(seen)} of {len(problems.planted)} faults looked at, {as_planted} seen in their category")
    for row in seen:
        if row["seen"] != row["category"]:
            print(f"    {row['id']}: seen as {row['seen']}: {row['status']}: {row['reason'][:150]}")
    print(f"{len(done)} of {len(problems.parents)} parents have every action measured; {elapsed_s:.0f} s")
    for why, count in Counter(row["why"][-200:] for row in troubles).most_common(10):
        print(f"    trouble, {count} times: {why!r}")


def print_task(name: str, parents: list[truth.Row], done: list[truth.Row], actions: list[truth.Row]) -> None:
    passed = [row for row in actions if row["status"] == "passed"]
    best: dict[str, float] = {}
    faster = slower = 0
    for row in passed:
        gain, low, high = truth.gain_of(row)
        faster += low > 1.0
        slower += high < 1.0
        best[row["parent"]] = max(best.get(row["parent"], 1.0), gain)
    off = [abs(one[0] - 1.0) for row in parents for one in row["itself"].values() if one[0] is not None]
    print(
        f"{name:<14}{len(parents):>8}{len(done):>6}{len(actions):>9}{len(passed):>8}"
        f"{sum(row['witnessed'] for row in passed):>11}{faster:>8}{slower:>8}"
        f"{(f'{statistics.median(best.values()):.3f}x' if best else ''):>11}"
        f"{(f'{max(off):.2%}' if off else ''):>9}",
        flush=True,
    )


if __name__ == "__main__":
    main()
