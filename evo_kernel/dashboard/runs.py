"""Reads one population file for all pages: a shared reader, and numbers that are read anew at intervals."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo_kernel.dashboard.formatting import ratio
from evo_kernel.observe.formatting import against, age_text, busy_text, stages_text
from populations.connect import owner
from populations.reading import PopulationReader, pipeline
from populations.statistics import CellView, RunStatus

LOOK_S = 1.0
"""The file is read no more often than this, however many pages are open."""
SHARE = 0.2
"""Of the time that reading may take: a large population is read less often."""
LATEST = 12


@dataclass(frozen=True)
class Overview:
    """A run in numbers."""

    status: RunStatus
    rises: Sequence[dict[str, Any]]  # rows of `PopulationReader.history`
    cells: Sequence[CellView]
    strategies: Sequence[dict[str, Any]]
    latest: Sequence[dict[str, Any]]  # rows of `PopulationReader.nodes`, the latest first
    last_at: float | None  # Unix time of the latest verdict

    @property
    def hours(self) -> float:
        return self.status.wall_s / 3600

    @property
    def evaluations(self) -> int:
        return sum(self.status.evaluations.values())


class Run:
    """One population. Thread-safe."""

    def __init__(self, number: int, path: Path, look_s: float) -> None:
        self.number, self.path = number, path
        self._lock = threading.Lock()
        self._reader = PopulationReader(path)
        self._overview: Overview | None = None
        self._look_s, self._look_again = look_s, -math.inf  # on the monotonic clock
        self._seen = -1  # `PopulationReader.changes` at the last look
        self.task = self._reader.task.name

    @property
    def title(self) -> str:
        return self.path.name

    @contextmanager
    def reader(self) -> Iterator[PopulationReader]:
        """For one page at a time: keep it short."""
        with self._lock:
            yield self._reader

    def overview(self) -> Overview:
        with self.reader() as reader:
            began = time.monotonic()
            if self._overview is not None and began < self._look_again:
                return self._overview
            seen = reader.changes()
            if self._overview is None or seen != self._seen:
                self._overview, self._seen = _looked(reader), seen
            now = time.monotonic()
            self._look_again = now + self._look_s * max(1.0, (now - began) / SHARE)
            return self._overview

    def headline(self) -> str:
        """Where it stands, on every page."""
        status = self.overview().status
        over = f" {against(status.baselines.values())}".rstrip()
        best = f"best {ratio(status.best.score)}{over}" if status.best else "nothing passed yet"
        return f"{'● running' if owner(self.path) else '○ not running'}, {best}, {status.candidates:,} candidates"

    def doing(self) -> str:
        """What the process that writes the file says of itself."""
        writer, state = owner(self.path), pipeline(self.path)
        told = [f"written by process {writer[0]} on {writer[1]}" if writer else "not running"]
        if state is not None:
            told += [" ".join(stages_text(state).split()), busy_text(state), age_text(state, time.time())]
        return "; ".join(filter(None, told))

    def close(self) -> None:
        with self._lock:
            self._reader.close()


def _looked(reader: PopulationReader) -> Overview:
    latest = reader.latest(LATEST)
    rows = {row["candidate"]: row for row in reader.nodes(latest)}
    return Overview(
        status=reader.status(),
        rises=reader.history(),
        cells=reader.cells(),
        strategies=reader.strategies(),
        latest=[rows[number] for number in latest],
        last_at=reader.last_at(),
    )
