"""Many programs: compiled by as many processes as there are cores, launched by one process that owns the GPU."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.fuzz.stored import Case, write
from evo_kernel.tasks.helper_process import HelperLost, HelperProcess

COMPILE_S, LAUNCH_S = 30.0, 20.0  # processor time
SHARD = 5000  # cases of a file


def gpu_child() -> HelperProcess:
    """The process that launches cases on the GPU, one at a time."""
    return HelperProcess("from benchmarks.fuzz.gpu import child; child()", environment={})


class Farm:
    """Collects cases until the seeds or the time are used up."""

    def __init__(self, out: Path, name: str, seconds: float) -> None:
        self.out, self.name = out, name
        self.until = time.monotonic() + seconds
        self.failures: Counter[str] = Counter()
        self.failed: dict[str, int] = {}
        self.done = 0
        self._cases: list[Case] = []
        self._shards = itertools.count()
        self._lock, self._gpu_lock = threading.Lock(), threading.Lock()
        self._gpu = gpu_child()

    def record(self, seeds: Iterable[int], workers: int) -> None:
        """Compile and launch the programs of these seeds."""
        left = iter(seeds)
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(self._work, [left] * workers))
        self._gpu.end()
        self._flush()

    def _work(self, seeds: Iterator[int]) -> None:
        compiler = HelperProcess("from benchmarks.fuzz.compiling import child; child()")
        while time.monotonic() < self.until:
            with self._lock:
                seed = next(seeds, None)
            if seed is None:
                break
            try:
                case, problem = compiler.ask(seed, COMPILE_S)
            except HelperLost as lost:
                case, problem = None, f"the compiler was lost: {lost.code}"
            if case is None:
                self._fail(seed, problem)
            else:
                self._launch(case)
        compiler.end()

    def _launch(self, case: Case) -> None:
        with self._gpu_lock:
            try:
                results, problem = self._gpu.ask(case, LAUNCH_S)
            except HelperLost as lost:
                results, problem = None, f"the launch was lost: {lost.code}"
            if problem.startswith("CudaError"):
                self._gpu.end()  # its context is not to be trusted
        if results is None:
            self._fail(case.seed, problem)
            return
        with self._lock:
            self._cases.append(replace(case, results=tuple(results), code=None))
            self.done += 1
            if len(self._cases) == SHARD:
                self._flush()
            if self.done % 500 == 0:
                print(f"{self.done} done, {self.failures.total()} failed", flush=True)

    def _fail(self, seed: int, problem: str) -> None:
        with self._lock:
            self.failures[problem[:80]] += 1
            self.failed[problem[:80]] = seed

    def _flush(self) -> None:
        cases, self._cases = sorted(self._cases, key=lambda case: case.seed), []
        if cases:
            write(self.out / f"{self.name}-{next(self._shards)}.jsonl.xz", cases)


def report(farm: Farm) -> None:
    """What failed, the most frequent first, each with one seed."""
    print(f"{farm.done} programs, {farm.failures.total()} failed")
    for problem, count in farm.failures.most_common(12):
        print(f"  {count}\t{problem}\tseed {farm.failed[problem]}")
