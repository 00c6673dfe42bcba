"""Servers of a spool whose judge answers at once; as a program, several of them, killed at random.

python -m tests.support.spool_servers DIR --kills 50 --seed 3
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.spool.folder import SpoolFolder
from evo_kernel.fitness.spool.messages import Announcement
from evo_kernel.fitness.spool.server import SpoolServer, server_name
from evo_kernel.fitness.spool.warm_judges import WarmJudges
from evo_kernel.types import Environment, Evaluation, Purpose, Source
from tests.support.scripted import ENVIRONMENT, scored

Verdict = Callable[[Source, Purpose], Evaluation]
QUICK = {"lease_s": 1.0, "beat_s": 0.05}


class InstantJudge:
    """In the place of a PlanJudge. `before` is called with each source, and may sleep or raise."""

    def __init__(
        self, identity: str, environment: Environment, before: Callable[[Source], None], verdict: Verdict
    ) -> None:
        self._identity, self.environment, self._before, self._verdict = identity, environment, before, verdict
        self.baselines = self
        self.on_baselines: Callable[[str, Mapping[str, float], Mapping[str, str]], None] = lambda *told: None
        self.closed = threading.Event()

    def evaluate(self, source: Source, purpose: Purpose, *others: Any, effort: int = 1) -> Evaluation:
        self._before(source)
        if self.closed.is_set():
            raise InfraError("closed")
        self.on_baselines("large", {"first": 100.0}, {})
        return replace(self._verdict(source, purpose), task=self._identity, environment=self.environment)

    def profile(self, *asked: Any) -> Mapping[str, Any]:
        raise UserError("a made-up kernel has no profile")

    def close(self) -> None:
        self.closed.set()


def server(
    path: Path,
    scratch: Path,
    *,
    environment: Environment = ENVIRONMENT,
    slots: int = 4,
    before: Callable[[Source], None] = lambda source: None,
    verdict: Verdict = scored,
    **settings: float,
) -> SpoolServer:
    judges = WarmJudges(
        lambda task, settings: InstantJudge(task.identity, environment, before, verdict),  # type: ignore[arg-type, return-value]
        scratch,
        JudgeSettings(),
    )
    told = Announcement(server=server_name(), beat=0, environment=environment, slots=slots)
    return SpoolServer(SpoolFolder(path), judges, told, lambda line: None, **QUICK | settings)


def _forked(path: Path, wait_s: float) -> int:
    """A server in a process of its own, forked while this one has a single thread."""
    child = os.fork()
    if child == 0:
        try:
            one = server(path, Path(tempfile.mkdtemp()), before=lambda source: time.sleep(wait_s))
            signal.signal(signal.SIGTERM, lambda *_: one.stop())
            one.run()
        finally:
            os._exit(0)
    return child


def main() -> None:
    """Keep some servers alive and kill one after the other; then let them work until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wait", type=float, default=0.02)
    options = parser.parse_args()
    SpoolFolder(options.path).prepare()
    draw = random.Random(options.seed)
    alive = [_forked(options.path, options.wait) for _ in range(options.servers)]
    print("ready", flush=True)
    for _ in range(options.kills):
        time.sleep(draw.uniform(0.02, 0.2))
        victim = alive.pop(draw.randrange(len(alive)))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        alive.append(_forked(options.path, options.wait))
    print("killed", flush=True)
    sys.stdin.read()
    for one in alive:
        os.kill(one, signal.SIGTERM)
    for one in alive:
        os.waitpid(one, 0)


if __name__ == "__main__":
    main()
