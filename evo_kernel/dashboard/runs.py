"""A population file that is looked at: followed once for everybody, opened anew for each page."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo_kernel.observe.words import age_text, busy_text, stages_text
from evo_kernel.types import Environment
from populations.connect import connect_reader
from populations.following import Follower
from populations.lock import owner
from populations.overview import Overview
from populations.reading import PopulationReader, pipeline

LOOK_S = 1.0
"""The file is looked at no more often than this, however many pages and streams are open."""


Limits = Callable[[Environment, Mapping[str, float]], Mapping[str, float]]
"""What an environment's machine reaches at most, by the names of stored ceilings; empty where nobody knows."""


@dataclass(frozen=True)
class Doing:
    """What the process that writes the file says of itself."""

    writer: str  # empty: nobody writes
    stages: str
    busy: str
    age: str


class Run:
    """One population. Thread-safe."""

    def __init__(self, number: int, path: Path, limits: Limits) -> None:
        self.number, self.path, self.limits = number, path, limits
        self._lock = threading.Lock()
        self._connection = connect_reader(path)
        self._follower = Follower(self._connection)
        self._looked_at = 0.0
        self._overview: Overview | None = None
        self._doing: tuple[float, Doing] | None = None
        with self.reader() as reader:
            self.task = reader.task.name

    @property
    def title(self) -> str:
        return self.path.name

    @contextmanager
    def reader(self) -> Iterator[PopulationReader]:
        """For one request."""
        with PopulationReader(self.path) as reader:
            yield reader

    @contextmanager
    def following(self) -> Iterator[Follower]:
        """The follower as it stands after a look, held for as long as the block lasts: keep it short."""
        with self._lock:
            self._look()
            yield self._follower

    def overview(self) -> Overview:
        with self._lock:
            if self._look() or self._overview is None:
                self._overview = self._follower.overview()
            return self._overview

    def doing(self) -> Doing:
        with self._lock:
            if self._doing is None or time.monotonic() - self._doing[0] > LOOK_S:
                self._doing = (time.monotonic(), self._ask())
            return self._doing[1]

    def _ask(self) -> Doing:
        writer, state = owner(self.path), pipeline(self.path)
        told = f"process {writer[0]} on {writer[1]}" if writer else ""
        if state is None:
            return Doing(told, "", "", "")
        return Doing(told, " ".join(stages_text(state).split()), busy_text(state), age_text(state, time.time()))

    def pulse(self) -> dict[str, Any]:
        """What a stream tells: small, and equal to the one before while nothing happens."""
        told, doing = self.overview(), self.doing()
        best = told.best or 0
        return {
            "seen": list(told.seen),
            "candidates": told.candidates,
            "evaluations": told.evaluations,
            "best": best,
            "score": told.scores.get(best),
            "writing": bool(doing.writer),
            "stages": doing.stages,
        }

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _look(self) -> bool:
        if time.monotonic() - self._looked_at < LOOK_S and self._overview is not None:
            return False
        found = self._follower.look()
        self._looked_at = time.monotonic()
        return found
