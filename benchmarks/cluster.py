"""How a search over many GPUs behaves: a simulation from measured times, and one real point that it must predict.

    python -m benchmarks.cluster                 # 1 to 1,000 GPUs, simulated
    python -m benchmarks.cluster --real          # a real spool on this machine beside its simulation

An attempt waits for its model, takes the search's process (one core: Python's lock), waits in the spool, takes a core
of a judge's host (record, compile), then one of its GPUs (check, tune, time), and is counted by the search's process.
Waits for models are exponential, all other times gamma-distributed with half their mean as standard deviation. A host
that fails loses what it has in hand until its lease ends, and comes back later.

`--real`: threads that ask a population and a spool, and servers whose judge sleeps. Processor seconds are measured at
one point (one server), another one (`--servers`) is predicted from them.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import simpy

from benchmarks.population import CARD, propose
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.spool.client import SLOWEST_S, SpoolJudge
from evo_kernel.fitness.spool.folder import LEASE_S, SpoolFolder
from evo_kernel.tasks.loading import load
from evo_kernel.types import Purpose, Source
from populations.population import open_population
from tests.support.scripted import ENVIRONMENT

POLL = 0.1
"""Of its wait, by which a verdict is seen late on the average: pauses grow by a fifth, up to SLOWEST_S."""
DAY_S = 86400.0


@dataclass(frozen=True)
class Cluster:
    """Times in seconds, a candidate where nothing else is said."""

    hosts: int
    gpus: int = 8  # a host
    cores: int = 128  # a host
    width: int = 64  # attempts under way
    model_s: float = 60.0  # a conversation
    driver_s: float = 0.005  # of the search's process, as --real measures it, without operators
    core_s: float = 0.8  # record and compile; likewise
    gpu_s: float = 0.073  # check and time; benchmarks.throughput, matmul on an H200
    failures_a_day: float = 1.0  # a host
    repair_s: float = 600.0
    lease_s: float = LEASE_S
    machine_cores: int = 0  # that all processes share, in the real point; 0: each has its own


@dataclass
class Seen:
    """What a simulation saw after its warm-up."""

    done: int = 0
    queued_s: list[float] = field(default_factory=list)  # from request to claim
    driver_s: float = 0.0
    gpu_s: float = 0.0
    lost: int = 0  # judged again


class Simulation:
    """One run of a cluster."""

    def __init__(self, cluster: Cluster, seed: int = 1) -> None:
        self.cluster, self.seen = cluster, Seen()
        self._rng = random.Random(seed)
        self._env = simpy.Environment()
        self._driver = simpy.Resource(self._env, 1)
        self._machine = simpy.Resource(self._env, cluster.machine_cores or 10**9)
        self._requests = simpy.Store(self._env)
        for _ in range(cluster.width):
            self._env.process(self._attempts())
        for _ in range(cluster.hosts):
            self._env.process(self._host())

    def run(self, warm_s: float, for_s: float) -> Seen:
        self._env.run(warm_s)
        self.seen.__init__()
        self._env.run(warm_s + for_s)
        return self.seen

    def _drawn(self, mean: float) -> float:
        return self._rng.gammavariate(4.0, mean / 4.0) if mean else 0.0

    def _busy(self, resource: simpy.Resource, seconds: float) -> Generator[Any, Any, None]:
        with resource.request() as turn, self._machine.request() as core:
            yield turn & core
            yield self._env.timeout(seconds)

    def _attempts(self) -> Generator[Any, Any, None]:
        half_s = self.cluster.driver_s / 2
        while True:
            yield self._env.timeout(self._rng.expovariate(1 / self.cluster.model_s) if self.cluster.model_s else 0.0)
            yield from self._busy(self._driver, spent := self._drawn(half_s))
            asked, judged = self._env.now, self._env.event()
            yield self._requests.put((asked, judged))
            yield judged
            yield self._env.timeout(min(SLOWEST_S, 2 * POLL * (self._env.now - asked)) * self._rng.random())
            yield from self._busy(self._driver, more := self._drawn(half_s))
            self.seen.driver_s += spent + more
            self.seen.done += 1

    def _host(self) -> Generator[Any, Any, None]:
        while True:
            gpus = simpy.Resource(self._env, max(1, self.cluster.gpus))
            slots = [self._env.process(self._slot(gpus)) for _ in range(self.cluster.cores)]
            rate = self.cluster.failures_a_day / DAY_S
            yield self._env.timeout(self._rng.expovariate(rate) if rate else DAY_S * 1e6)
            for slot in slots:
                slot.interrupt()
            yield self._env.timeout(self.cluster.repair_s)

    def _slot(self, gpus: simpy.Resource) -> Generator[Any, Any, None]:
        request = None
        claim = self._requests.get()
        try:
            while True:
                request = yield claim
                self.seen.queued_s.append(self._env.now - request[0])
                if self.cluster.machine_cores:  # sleeps, and spends some processor time
                    yield self._env.timeout(self.cluster.gpu_s)
                    with self._machine.request() as core:
                        yield core
                        yield self._env.timeout(self._drawn(self.cluster.core_s))
                else:
                    yield self._env.timeout(self._drawn(self.cluster.core_s))
                    with gpus.request() as turn:
                        yield turn
                        yield self._env.timeout(spent := self._drawn(self.cluster.gpu_s))
                    self.seen.gpu_s += spent
                request[1].succeed()
                request, claim = None, self._requests.get()
        except simpy.Interrupt:
            claim.cancel()
            if request is None and claim.triggered:
                request = claim.value
            if request is not None:
                self.seen.lost += 1
                yield self._env.timeout(self.cluster.lease_s)
                yield self._requests.put(request)


def scale(arguments: argparse.Namespace) -> None:
    """The table of 1 to 1,000 GPUs."""
    print("| GPUs | width | attempts/s | GPUs busy | in the queue: median, p95 s | search's core busy | judged again |")
    print("|---|---|---|---|---|---|---|")
    for gpus in (1, 8, 64, 1000):
        cluster = replace(
            arguments.cluster, hosts=max(1, gpus // 8), gpus=min(8, gpus), cores=16 * min(8, gpus),
            width=arguments.width * gpus,
        )  # fmt: skip
        seconds = 4000.0 if gpus < 64 else 1000.0
        seen = Simulation(cluster).run(300.0, seconds)
        queued = sorted(seen.queued_s) or [0.0]
        print(
            f"| {gpus} | {cluster.width} | {seen.done / seconds:.1f} | {seen.gpu_s / seconds / gpus:.0%} | "
            f"{statistics.median(queued):.2f}, {queued[int(0.95 * (len(queued) - 1))]:.2f} | "
            f"{seen.driver_s / seconds:.0%} | {seen.lost} |",
            flush=True,
        )


@dataclass(frozen=True)
class Point:
    """What a real spool did."""

    rate: float  # attempts a second
    driver_s: float  # processor seconds an attempt, of the search's process
    server_s: float  # and of all servers


def measured(servers: int, width: int, sleep_s: float, attempts: int) -> Point:
    """So many attempts through a population and a spool, with servers of four slots whose judge sleeps."""
    task, lock, left = load("softmax"), threading.Lock(), [attempts]
    with tempfile.TemporaryDirectory() as scratch:
        box = Path(scratch) / "box"
        command = [sys.executable, "-m", "tests.support.spool_servers", str(box)]
        command += ["--servers", str(servers), "--wait", str(sleep_s)]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as there,
            open_population(
                Path(scratch) / "toy.db", task=CARD, task_identity=task.identity, environment=ENVIRONMENT, seed=1
            ) as population,
            SpoolJudge(SpoolFolder(box), task, ENVIRONMENT, JudgeSettings()) as judge,
        ):
            assert there.stdout is not None
            there.stdout.readline()
            first = population.plant(Source("time_us = 100.0\n"))
            population.tell(first, judge.evaluate(first.proposal.source, Purpose.SCORE))

            def work(number: int) -> None:
                rng = random.Random(number)
                while True:
                    with lock:
                        if not left[0]:
                            return
                        left[0] -= 1
                    brief = population.ask()
                    source = Source(f"time_us = {rng.uniform(50, 150)}\n# {brief.attempt}\n" + "x = 1\n" * 20)
                    recorded = population.record(brief, replace(propose(brief, rng), source=source))
                    population.tell(recorded, judge.evaluate(source, Purpose.SCORE), True)

            known_s, spent, began = _spent_s(there.pid), time.process_time(), time.perf_counter()
            threads = [threading.Thread(target=work, args=(number,)) for number in range(width)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            wall_s, driver_s = time.perf_counter() - began, time.process_time() - spent
            server_s = _spent_s(there.pid) - known_s
            there.communicate()
    return Point(attempts / wall_s, driver_s / attempts, server_s / attempts)


def _spent_s(process: int) -> float:
    """Processor seconds of a process's children."""
    every = [child.cpu_times() for child in psutil.Process(process).children()]
    return sum(one.user + one.system for one in every)


def real(arguments: argparse.Namespace) -> None:
    """The real point, and its prediction."""
    cores, sleep_s = len(os.sched_getaffinity(0)), arguments.sleep
    known = measured(1, 8, sleep_s, arguments.attempts // arguments.servers)
    found = measured(arguments.servers, 8 * arguments.servers, sleep_s, arguments.attempts)
    print("| servers | width | attempts/s | ms of the search's process | ms of servers |")
    print("|---|---|---|---|---|")
    for servers, point in ((1, known), (arguments.servers, found)):
        spent = f"{point.driver_s * 1e3:.1f} | {point.server_s * 1e3:.1f}"
        print(f"| {servers} | {8 * servers} | {point.rate:.1f} | {spent} |")
    for servers, point in ((1, known), (arguments.servers, found)):
        cluster = Cluster(
            servers, cores=4, width=8 * servers, model_s=0.0, driver_s=known.driver_s, core_s=known.server_s,
            gpu_s=sleep_s, failures_a_day=0.0, machine_cores=cores,
        )  # fmt: skip
        said = Simulation(cluster).run(10.0, 120.0).done / 120.0
        print(f"{servers} servers: simulated {said:.1f}/s, {said / point.rate - 1:+.0%} of what was measured")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--attempts", type=int, default=800)
    parser.add_argument("--sleep", type=float, default=0.3, help="seconds of the real point's judge")
    parser.add_argument("--width", type=int, default=64, help="attempts under way, a GPU")
    for name in ("model_s", "driver_s", "core_s", "gpu_s", "failures_a_day", "repair_s"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(Cluster(1), name))
    arguments = parser.parse_args()
    names = ("model_s", "driver_s", "core_s", "gpu_s", "failures_a_day", "repair_s")
    arguments.cluster = Cluster(1, **{name: getattr(arguments, name) for name in names})
    real(arguments) if arguments.real else scale(arguments)


if __name__ == "__main__":
    main()
