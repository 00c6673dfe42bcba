"""A server of a spool with this machine's judges, from its first judge to the last signal."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from evo_kernel.app.signals import beside, ending_twice
from evo_kernel.fitness.gpus import usable_cores
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge
from evo_kernel.fitness.spool.folder import SpoolFolder
from evo_kernel.fitness.spool.messages import Announcement
from evo_kernel.fitness.spool.server import Served, SpoolServer, server_name
from evo_kernel.fitness.spool.warm_judges import WarmJudges
from evo_kernel.scratch import Scratch
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Task

PROBED = "softmax"
"""The task whose judge tells what this machine is, before there is a request."""
TOLD_S = 10.0


def serve(
    path: Path,
    device: str,
    gpus: str,
    own: JudgeSettings,
    until_empty: bool,
    for_s: float | None,
    say: Callable[[str], None],
) -> Served:
    """Until a signal, the time, or an empty spool. `own`: settings that no request may set. `say` hears how it goes.
    Raises UserError, InfraError."""
    folder = SpoolFolder(path.absolute())
    folder.prepare()
    with Scratch("spool") as scratch:
        announcement, judges = machine_judges(device, gpus, own, scratch)
        server = SpoolServer(folder, judges, announcement, say)
        label, waiting = announcement.environment.label, folder.carried()[0]
        say(f"judging in {folder.path}: {label}, {announcement.slots} side by side; {waiting} requests wait")
        say(f"environment {announcement.environment.key}; searches: --judge spool:{folder.path}")

        def abort(name: str) -> None:
            server.give_all_back()
            sys.stderr.flush()
            os._exit(130)

        with beside(partial(_tell, server, say)), ending_twice(lambda name: server.stop(), abort):
            return server.run(until_empty, for_s)


def machine_judges(device: str, gpus: str, own: JudgeSettings, scratch: Path) -> tuple[Announcement, WarmJudges]:
    """What this machine is, and its judges. Raises UserError, InfraError."""

    def opened(task: Task, settings: JudgeSettings) -> PlanJudge:
        return open_judge(task, device=device, settings=settings, gpus=gpus)

    with opened(load(PROBED), own) as judge:
        ceilings = judge.ceilings
        slots = usable_cores() * (2 if ceilings.measured else 1)  # some wait for the GPU, others keep the cores busy
        announcement = Announcement(
            server=server_name(), beat=0, environment=judge.environment, cards=len(judge.stages.gpus),
            ceilings=ceilings.as_data() if ceilings.measured else {}, slots=slots,
        )  # fmt: skip
    return announcement, WarmJudges(opened, scratch, own)


def _tell(server: SpoolServer, say: Callable[[str], None], ended: threading.Event) -> None:
    """Now and then, where something has changed."""
    before = server.served.text
    while not ended.wait(TOLD_S):
        if (now := server.served.text) != before:
            say(now)
            before = now
