"""Many programs: compiled by as many processes as there are cores, launched by one process that owns the GPU."""

from __future__ import annotations

import itertools
import lzma
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.fuzz.children import Child, Lost
from benchmarks.fuzz.stored import Case, write

COMPILE_S, LAUNCH_S = 30.0, 20.0
SHARD = 5000  # cases of a file


class Farm:
    """Collects cases until the seeds or the time are used up."""

    def __init__(self, out: Path, name: str, seconds: float) -> None:
        self.out, self.name = out, name
        self.until = time.monotonic() + seconds
        self.failures: Counter[str] = Counter()
        self.failed: list[str] = []
        self.done = 0
        self._cases: list[Case] = []
        self._shards = itertools.count()
        self._writers: list[threading.Thread] = []
        self._lock, self._gpu_lock = threading.Lock(), threading.Lock()
        self._gpu = Child("benchmarks.fuzz.gpu")

    def record(self, seeds: Iterable[int], workers: int) -> None:
        """Compile and launch the programs of these seeds."""
        left = iter(seeds)
        threads = [threading.Thread(target=self._work, args=(left,)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._gpu.close()
        self._flush()
        for writer in self._writers:
            writer.join()

    def _work(self, seeds: Iterable[int]) -> None:
        compiler = Child("benchmarks.fuzz.compiler")
        while time.monotonic() < self.until:
            with self._lock:
                seed = next(seeds, None)  # type: ignore[call-overload]
            if seed is None:
                break
            try:
                case, problem = compiler.ask(seed, COMPILE_S)
            except Lost as lost:
                case, problem = None, f"the compiler was lost: {lost}"
            if case is None:
                self._fail(seed, problem)
            else:
                self._launch(case)
        compiler.close()

    def _launch(self, case: Case) -> None:
        with self._gpu_lock:
            try:
                results, problem = self._gpu.ask(case, LAUNCH_S)
            except Lost as lost:
                results, problem = None, f"the launch was lost: {lost}"
            if problem.startswith("CudaError"):
                self._gpu.close()  # its context is not to be trusted
        if results is None:
            self._fail(case.seed, problem)
            return
        with self._lock:
            self._cases.append(replace(case, results=tuple(results), code=None))
            self.done += 1
            if len(self._cases) == SHARD:
                self._flush()
            if self.done % 500 == 0:
                print(f"{self.done} done, {sum(self.failures.values())} failed", flush=True)

    def _fail(self, seed: int, problem: str) -> None:
        with self._lock:
            self.failures[problem[:80]] += 1
            self.failed.append(f"{seed}\t{problem}")

    def _flush(self) -> None:
        cases, self._cases = sorted(self._cases, key=lambda case: case.seed), []
        if cases:
            path = self.out / f"{self.name}-{next(self._shards)}.jsonl.xz"
            writer = threading.Thread(target=write, args=(path, cases))
            writer.start()
            self._writers.append(writer)


def report(farm: Farm) -> None:
    """What failed, to a file and to the screen."""
    (farm.out / f"{farm.name}-failed.txt.xz").write_bytes(lzma.compress("\n".join(farm.failed).encode()))
    print(f"{farm.done} programs, {len(farm.failed)} failed")
    for problem, count in farm.failures.most_common(12):
        print(f"  {count}\t{problem}")
