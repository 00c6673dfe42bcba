"""A population file that is looked at: followed once for everybody, opened anew for each page."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from evo_kernel.dashboard.formatting import ratio
from evo_kernel.observe.formatting import age_text, busy_text, stages_text
from populations.connect import connect_reader
from populations.incremental_statistics import Follower
from populations.lock import owner
from populations.reading import PopulationReader, pipeline
from populations.views import Overview

LOOK_S = 1.0
"""The file is looked at no more often than this, however many pages are open."""


@dataclass(frozen=True)
class Doing:
    """What the process that writes the file says of itself."""

    writer: str  # empty: nobody writes
    stages: str
    busy: str
    age: str


class Run:
    """One population. Thread-safe."""

    def __init__(self, number: int, path: Path) -> None:
        self.number, self.path = number, path
        self._lock = threading.Lock()
        self._connection = connect_reader(path)
        self._follower = Follower(self._connection)
        self._looked_at = -math.inf
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
            self._look()
            if self._overview is None:
                self._overview = self._follower.overview()
            return self._overview

    def headline(self) -> str:
        """Where it stands, on every page."""
        told, running = self.overview(), "● running" if self.doing().writer else "○ not running"
        best = f"best {ratio(told.scores[told.best])}" if told.best else "nothing passed yet"
        return f"{running}, {best}, {told.candidates:,} candidates"

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

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _look(self) -> None:
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        if self._follower.look():
            self._overview = None
        self._looked_at = time.monotonic()
