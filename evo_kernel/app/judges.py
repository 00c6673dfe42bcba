"""Opens the judge that a command asks for: one of this process, or one that is elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from evo_kernel.errors import ConfigError
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge
from evo_kernel.fitness.spool.client import SpoolJudge, open_spool_judge
from evo_kernel.fitness.spool.pool import HostPool, PooledJudge
from evo_kernel.judge_place import LOCAL, SPOOL
from evo_kernel.tasks.task import Task
from evo_kernel.types import Environment

AnyJudge = PlanJudge | SpoolJudge


def opened_judge(
    place: str,
    task: Task,
    *,
    device: str = "auto",
    settings: JudgeSettings,
    gpus: str = "1",
    score_soon: bool = False,
    known: Environment | None = None,
    choice: str = "",
    wait: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> AnyJudge:
    """`place`: see judge_place. `known`, `choice`, `wait`: see `open_spool_judge`. Raises UserError, InfraError."""
    if place == LOCAL:
        return open_judge(task, device=device, settings=settings, gpus=gpus, score_soon=score_soon)
    if not place.startswith(SPOOL):
        return PooledJudge(_pool(place, device, settings, known, choice, say), task, settings)
    path = Path(place.removeprefix(SPOOL))
    if device != "auto":
        raise ConfigError(
            f"--device {device} is for a judge of this machine. Give it to `evo-kernel judge {path}`, and here "
            f"--device auto."
        )
    return open_spool_judge(path, task, settings, known, choice, wait, say)


@contextlib.contextmanager
def shared_place(place: str, device: str, settings: JudgeSettings, say: Callable[[str], None]) -> Iterator[str]:
    """Where any number of searches find the judges of a Ray cluster for as long as the block lasts: they serve a
    folder. Raises UserError, InfraError."""
    pool = _pool(place, device, settings, None, "", say)
    try:
        pool.first()
        yield f"{SPOOL}{pool.folder.path}"
    finally:
        pool.close()


def _pool(
    place: str,
    device: str,
    settings: JudgeSettings,
    known: Environment | None,
    choice: str,
    say: Callable[[str], None],
) -> HostPool:
    from evo_kernel.app.ray_judges import RayHosts

    return HostPool(RayHosts(place, device, settings), known, choice, say)
