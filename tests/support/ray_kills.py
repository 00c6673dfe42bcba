"""Two nodes of a Ray cluster on this machine judge real kernels, while their judges, and one node, are killed at random.

python -m tests.support.ray_kills --kills 50 --verdicts 300

Prints one JSON object; then it waits until its standard input ends.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from evo_kernel import processes
from evo_kernel.app.ray_judges import RayHosts
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.spool.pool import HostPool, PooledJudge
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import load
from evo_kernel.types import Evaluation, Purpose, Source
from tests.cli.test_compose import TASK

SECRET = "NOBODYS_API_KEY"
NODE_EVERY = 10
"""One kill of so many is of a node."""


class SecondNode:
    """A node with one core, for as long as it is not killed."""

    def __init__(self, address: str) -> None:
        self._address, self.ending = address, threading.Event()
        self.start()

    def start(self) -> None:
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={self._address}", "--block",
            "--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats",
        ]  # fmt: skip
        env = {name: value for name, value in os.environ.items() if name != SECRET}
        ended = lambda: processes.run(command, 1e9, lambda chunk: None, env, enough=self.ending.is_set)  # noqa: E731
        self.thread = threading.Thread(target=ended, daemon=True)
        self.thread.start()

    def kill(self) -> None:
        self.ending.set()
        self.thread.join()
        self.ending = threading.Event()
        self.start()


def named(name: str) -> list[psutil.Process]:
    """Descendants whose command line begins so."""
    found = []
    for one in psutil.Process().children(recursive=True):
        try:
            if (one.cmdline() or [""])[0].startswith(name):
                found.append(one)
        except psutil.Error:
            continue
    return found


def seeing(variable: str) -> int:
    """Judges, and processes of theirs, that have an environment variable."""
    return sum(
        variable in one.environ() for actor in named("ray::JudgeActor") for one in [actor, *actor.children(True)]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--verdicts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    os.environ[SECRET] = "sk-nobodys"
    draw, kills, began = random.Random(options.seed), [0, 0], time.monotonic()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "twice.py")
        file.write_text(TASK)
        task, hosts = load(file), RayHosts("ray", "cpu", JudgeSettings())
        first = first_kernel(task).text
        import ray

        second = SecondNode(ray.get_runtime_context().gcs_address)
        with PooledJudge(HostPool(hosts, None, "", say), task, JudgeSettings(tune_plans=0)) as judge:

            def judged(number: int) -> Evaluation:
                return judge.evaluate(
                    Source(first.replace("x * 2.0", f"tl.where(offsets > {1000 + number}, 0.0, x * 2.0)")),
                    Purpose.SCORE,
                )

            with ThreadPoolExecutor(8) as lanes:
                while len(named("ray::JudgeActor")) < 2:
                    time.sleep(0.1)
                asked = [lanes.submit(judged, number) for number in range(options.verdicts)]
                while sum(kills) < options.kills:
                    due = options.verdicts * (sum(kills) + draw.random()) / (options.kills + 1)
                    while sum(one.done() for one in asked) < due:
                        time.sleep(0.05)
                    time.sleep(draw.uniform(0.0, 1.0))
                    actors = named("ray::JudgeActor")
                    if sum(kills) % NODE_EVERY == NODE_EVERY - 1:
                        second.kill()
                        kills[1] += 1
                    elif actors:
                        draw.choice(actors).kill()
                        kills[0] += 1
                found = [one.result() for one in asked]
            told = {
                "verdicts": len({one.source for one in found}), "passed": sum(one.passed for one in found),
                "counted": sum(sum(one.charged.values()) for one in found), "killed": kills[0], "nodes_killed": kills[1],
                "environments": len({one.environment.key for one in found}), "seeing_secret": seeing(SECRET), "seeing_home": seeing("PATH"),
                "taken": len(list((judge.folder.path / "taken").iterdir())), "seconds": time.monotonic() - began,
                "processes": [one.pid for one in psutil.Process().children(recursive=True)],
            }  # fmt: skip
            print(json.dumps(told), flush=True)
            sys.stdin.read()
            second.ending.set()
            second.thread.join()


if __name__ == "__main__":
    main()
