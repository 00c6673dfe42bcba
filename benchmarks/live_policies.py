"""Macro policies in live searches at equal evaluations: who finds more with the same number of judged kernels?

    python -m benchmarks.live_policies --out live --device cuda --gpus 3 --tasks cross_entropy,swiglu,rotary \\
        --seeds 5 --evaluations 60 --policy trained=policy.pt --seconds 540
    python -m benchmarks.live_policies --out live --report

One `evo-kernel run` for each seed, task and policy: uniform, bandit, and a trained one for each `--policy
NAME=CHECKPOINT`. All searches have configs/h200.toml (offline operators alone, crossover as shipped) and what `--set
KEY=VALUE` says; only the policy differs. One search a GPU at a time, each with its share of the cores.

An evaluation is a *child that the judge gave a verdict on*, rejected ones too, in the order of the verdicts. Proposals
that came to nothing and kernels that the machine failed on do not count. `budget.evaluations` is another number: it
holds the settings of the tuner, second measurements and the first kernel as well, so that equal budgets would give a
policy that finds tunable kernels fewer of them. So a search has no such budget: it is stopped once `--evaluations`
children have their verdict, and the curves are cut off there. That also spares the confirmation on hidden cases. A
search that has nothing new to try left ends by itself; its last gain then counts on.

Seed by seed, task by task, policy by policy: what an interruption leaves are whole comparisons, and only those are
reported. Called again with the same `--out` it goes on: a search that ended has a row in `results.jsonl`, one that did
not is deleted and run anew. Searches are cut off at `--seconds`; none is begun that is not likely to end (by the mean
of earlier ones). Then the report, of a few seconds: see benchmarks/live_curves.py.

Gains are measured with `--device cuda`, modeled with `--device cpu`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.live_curves import first_verdict_at, judged, report
from evo_kernel.cli.suite.lanes import kill_tree
from evo_kernel.errors import PopulationError

CONFIG = "configs/h200.toml"
UNTRAINED = ("uniform", "bandit")
RESULTS = "results.jsonl"
POLL_S = 0.3
CLOSING_S = 15.0  # for a search that was stopped, before it is killed
BARREN = "barren"  # the cause that a search tells when it has tried all that it can think of


@dataclass(frozen=True)
class Job:
    """One search. `policy`: its name here; `settings`: what makes it that policy, as `--set` takes it."""

    task: str
    policy: str
    seed: int
    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.task}-{self.policy}-{self.seed}"


@dataclass(frozen=True)
class Slot:
    """Where one search at a time runs. `gpu`: as CUDA_VISIBLE_DEVICES names it."""

    gpu: str
    cores: tuple[int, ...]


@dataclass
class Work:
    """What the threads share: jobs in their order, and what earlier searches took. Guarded by `lock`."""

    jobs: deque[Job]
    took_s: dict[str, list[float]] = field(default_factory=dict)  # by task
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def next(self, left_s: float) -> Job | None:
        """None where nothing is left, or no time for what is next: others stay in their order, too."""
        with self.lock:
            if not self.jobs or self.over.is_set() or left_s < self.expected_s(self.jobs[0].task):
                return None
            return self.jobs.popleft()

    def expected_s(self, task: str) -> float:
        """The mean of this task's searches, else of all; 0 before there is one."""
        known = self.took_s.get(task) or [one for some in self.took_s.values() for one in some]
        return sum(known) / len(known) if known else 0.0


def main() -> None:
    chosen = arguments().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    if not chosen.report:
        chosen.out.mkdir(parents=True, exist_ok=True)
        try:
            run_all(chosen)
        except KeyboardInterrupt:
            sys.exit("interrupted: call again to go on, or with --report for what there is")
    print(report(chosen.out, rows_of(chosen.out)))


def arguments() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--report", action="store_true", help="only report what is there")
    made.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    made.add_argument("--gpus", type=int, default=1, help="searches side by side, also without a GPU")
    made.add_argument("--tasks", default="cross_entropy,swiglu,rotary")
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--evaluations", type=int, default=60, help="judged children of each search")
    made.add_argument("--policy", action="append", default=[], metavar="NAME=CHECKPOINT", help="repeatable")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all searches; repeatable")
    made.add_argument("--seconds", type=float, default=540.0, help="in all, without the report")
    made.add_argument("--search-seconds", type=float, default=300.0, help="that one search may take at most")
    return made


def jobs_of(tasks: Sequence[str], seeds: int, policies: dict[str, tuple[str, ...]]) -> list[Job]:
    """Any first part has all policies equally often on a task, but for the last comparison."""
    return [
        Job(task, policy, seed, settings)
        for seed in range(seeds)
        for task in tasks
        for policy, settings in policies.items()
    ]


def policies_of(trained: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Name -> settings. Ends the program where a checkpoint is not there."""
    found: dict[str, tuple[str, ...]] = {name: (f"operators.policy={name}",) for name in UNTRAINED}
    for one in trained:
        name, _, path = one.partition("=")
        if not name.isidentifier() or name in found or not Path(path).is_file():
            sys.exit(f"--policy {one}: write it as NAME=CHECKPOINT, with a new name of letters and an existing file")
        found[name] = ("operators.policy=trained", f"operators.checkpoint={json.dumps(str(Path(path).absolute()))}")
    return found


def setup_of(chosen: argparse.Namespace, policies: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """By policy, a digest of all that makes its searches what they are: searches of different ones do not compare."""
    common = [Path(CONFIG).read_text(), chosen.device, str(chosen.evaluations), *chosen.set]
    checkpoints = {name: b"" for name in UNTRAINED}
    for one in chosen.policy:
        name, _, path = one.partition("=")
        checkpoints[name] = Path(path).read_bytes()
    return {name: hashlib.sha256("\0".join(common).encode() + checkpoints[name]).hexdigest()[:16] for name in policies}


def rows_of(out: Path) -> list[dict[str, Any]]:
    """What ended so far; a line that was cut off is none."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in (out / RESULTS).read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def waiting(jobs: Sequence[Job], rows: Sequence[dict[str, Any]], setup: dict[str, str]) -> list[Job]:
    """Jobs without a row. Ends the program where a row is of another setup."""
    for row in rows:
        if row["policy"] in setup and row["setup"] != setup[row["policy"]]:
            sys.exit(f"{row['name']} was run with other settings, or another checkpoint: name another --out")
    done = {row["name"] for row in rows}
    return [job for job in jobs if job.name not in done]


def slots_of(count: int) -> list[Slot]:
    """The GPUs that this process may see, and its cores shared out."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    cores = sorted(os.sched_getaffinity(0))
    found = []
    for number in range(count):
        own = cores[number * len(cores) // count : (number + 1) * len(cores) // count]
        gpu = gpus[number] if number < len(gpus) and gpus[number] else str(number)
        found.append(Slot(gpu, tuple(own or cores)))
    return found


def run_all(chosen: argparse.Namespace) -> None:
    """Searches side by side until all have ended or the time is over; none is left running, whatever happens."""
    end = time.monotonic() + chosen.seconds
    policies = policies_of(chosen.policy)
    setup, rows = setup_of(chosen, policies), rows_of(chosen.out)
    jobs = waiting(jobs_of(chosen.tasks.split(","), chosen.seeds, policies), rows, setup)
    work = Work(deque(jobs))
    for row in rows:
        work.took_s.setdefault(row["task"], []).append(row["seconds"])
    threads = [
        threading.Thread(target=take_turns, args=(slot, work, chosen, setup, end)) for slot in slots_of(chosen.gpus)
    ]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.1)
    finally:
        work.over.set()
        for thread in threads:
            if thread.ident is not None:  # interrupted before it was started
                thread.join()
    if work.jobs:
        print(f"{len(work.jobs)} of {len(jobs)} searches were not begun: call again to go on", file=sys.stderr)


def take_turns(slot: Slot, work: Work, chosen: argparse.Namespace, setup: dict[str, str], end: float) -> None:
    """The life of a thread: one search after another."""
    os.sched_setaffinity(0, slot.cores)  # of this thread alone; processes that it starts inherit it
    while (job := work.next(end - time.monotonic())) is not None:
        for old in chosen.out.glob(f"{job.name}.db*"):
            old.unlink()
        began, began_at = time.monotonic(), time.time()
        path, limit_s = chosen.out / f"{job.name}.db", min(end - began, chosen.search_seconds)
        why = search(job, path, slot, chosen, work.over, limit_s)
        seconds, children = time.monotonic() - began, judged_so_far(path)
        ended = children >= chosen.evaluations or why == BARREN
        row = {
            "name": job.name, "task": job.task, "policy": job.policy, "seed": job.seed, "setup": setup[job.policy],
            "evaluations": chosen.evaluations, "children": children, "seconds": round(seconds, 2),
            "gpu": slot.gpu, "why": why,
        }  # fmt: skip
        with work.lock:
            told = f"{job.name}: {children} children in {seconds:.0f} s"
            if ended:
                row["setup_s"] = round(first_verdict_at(path) - began_at, 2)
                work.took_s.setdefault(job.task, []).append(seconds)
                with (chosen.out / RESULTS).open("a") as file:
                    file.write(json.dumps(row) + "\n")
            else:
                told += f"; {why}: it is run anew next time, see {path.with_suffix('.log')}"
            print(told, file=sys.stderr, flush=True)


def command_of(job: Job, path: Path, chosen: argparse.Namespace) -> list[str]:
    hours = (chosen.search_seconds + 60) / 3600  # should we be killed, it ends by itself
    overrides = [f"seed={job.seed}", f"budget.hours={hours}", *chosen.set, *job.settings]
    return [
        sys.executable, "-m", "evo_kernel.cli.main", "run", job.task, "--config", CONFIG, "--device", chosen.device,
        "--population", str(path), *(word for one in overrides for word in ("--set", one)), "--json",
    ]  # fmt: skip


def search(job: Job, path: Path, slot: Slot, chosen: argparse.Namespace, over: threading.Event, limit_s: float) -> str:
    """Run one until enough children are judged; why it ended. It is gone when this returns."""
    until = time.monotonic() + limit_s
    with path.with_suffix(".json").open("w") as out, path.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            command_of(job, path, chosen), stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": slot.gpu},
        )  # fmt: skip
        try:
            while process.poll() is None:
                if over.is_set() or time.monotonic() > until:
                    return "interrupted" if over.is_set() else f"cut off after {limit_s:.0f} s"
                if judged_so_far(path) >= chosen.evaluations:
                    stop(process)
                    return "enough"
                over.wait(POLL_S)
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
            process.wait()
    return cause_of(path.with_suffix(".json")) or f"it failed with exit code {process.returncode}"


def stop(process: subprocess.Popen[bytes]) -> None:
    """The first signal starts nothing new, the second does not wait for what is under way: it would not count."""
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(CLOSING_S)


def judged_so_far(path: Path) -> int:
    try:
        return len(judged(path))
    except PopulationError:  # it is not there yet
        return 0


def cause_of(summary: Path) -> str:
    """What the search told; empty where it did not come to that."""
    try:
        return json.loads(summary.read_text())["cause"]
    except (ValueError, KeyError):
        return ""


if __name__ == "__main__":
    main()
