"""What is left to do and the time for it, as lanes share them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from evo_kernel.cli.suite.lanes import Lane
from evo_kernel.cli.suite.tasks import Chosen

BESIDE_S = 20.0  # of --within: what a search takes beyond its budget, until some have told


@dataclass(frozen=True)
class Budget:
    """Of one task, over all turns; or of the whole command."""

    minutes: float
    evaluations: int | None
    turns: int
    within_s: float | None = None  # seconds of the whole command: every task gets an equal share

    def until(self, turn: int) -> tuple[float, int | None]:
        """Minutes and evaluations that may be spent by the end of a turn (from 1)."""
        evaluations = None if self.evaluations is None else max(1, self.evaluations * turn // self.turns)
        return self.minutes * turn / self.turns, evaluations


@dataclass(frozen=True)
class Job:
    """What is to be done for a task: search until its population had so much, or ask its harness alone."""

    one: Chosen
    minutes: float = 0.0
    evaluations: int | None = None
    search: bool = True
    confirm: bool = False  # resumed only to be confirmed


class Clock:
    """Shares out what is left of the whole command's time. Thread-safe."""

    def __init__(self, end: float | None, lanes: int) -> None:
        self._end, self._lanes = end, lanes
        self._beside: list[float] = []
        self._lock = threading.Lock()

    @property
    def limited(self) -> bool:
        return self._end is not None

    @property
    def left_s(self) -> float:
        return float("inf") if self._end is None else self._end - time.monotonic()

    def share(self, waiting: int) -> float:
        """Seconds for a search that is begun now, all that it takes beside included; `waiting`: itself and others."""
        return min(self.left_s, self.left_s * self._lanes / max(waiting, 1))

    def took(self, whole_s: float, search_s: float) -> None:
        """A job that was loaded ahead took so long, of which it was allowed to search so long.

        One that ended early says nothing; nor does a lane's first, which loads meanwhile: on a fresh machine for half a
        minute.
        """
        if whole_s > search_s:
            with self._lock:
                self._beside.append(whole_s - search_s)

    @property
    def beside_s(self) -> float:
        """What a job takes beyond its search's budget."""
        with self._lock:
            recent = self._beside[-2 * self._lanes :]
            return sum(recent) / len(recent) if recent else BESIDE_S


class Waiting:
    """Jobs that no lane does yet; a lane may keep its next one, to get ready for it. Thread-safe."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, self._kept = deque(jobs), dict[Lane, Job]()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._jobs) + len(self._kept)

    def next(self, lane: Lane) -> Job | None:
        """The job that this lane will take; None where none is left."""
        with self._lock:
            if lane not in self._kept and self._jobs:
                self._kept[lane] = self._jobs.popleft()
            return self._kept.get(lane)

    def take(self, lane: Lane) -> Job | None:
        with self._lock:
            return self._kept.pop(lane, None) or (self._jobs.popleft() if self._jobs else None)
