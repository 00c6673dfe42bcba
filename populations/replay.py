"""Resume is replay: the search state of a file, from its rows in the order of their ids."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from populations.encoding import loads
from populations.leaderboard import TakenVerdict
from populations.search_state import SearchState
from populations.settings import PopulationSettings

CANDIDATES = (
    "SELECT c.attempt, c.source, IFNULL(c.strategy, 0), IFNULL(c.parent, 0), c.island, c.generation"
    " FROM candidates c WHERE c.id > ? ORDER BY c.id"
)
EVALUATIONS = (
    "SELECT e.id, n.key, e.run, e.charged, e.gpu_s, e.at, e.candidate, e.purpose, e.status, e.score, e.log_us,"
    " e.log_variance, e.light_share, e.cell, e.plan_key, e.cost, e.fresh, e.witnessed"
    " FROM evaluations e JOIN environments n ON n.id = e.environment WHERE e.id > ? AND e.id <= ? ORDER BY e.id"
)
FOREVER = 2**62


class ToldVerdict(NamedTuple):
    """A row of evaluations, as far as it tells something new."""

    number: int
    environment: str  # its key
    run: int
    charged: str  # JSON
    gpu_s: float
    at: float  # Unix time
    verdict: TakenVerdict


class Replay:
    """The search state of a file, and what was written since. For one thread; `advance` inside a transaction, where
    somebody may be writing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.state = SearchState()
        self._connection = connection
        self._evaluation = 0  # the last one that was told

    def advance(self) -> Iterator[ToldVerdict]:
        """Take in new rows; every verdict is yielded before the state is told of it.

        All candidates come before the first verdict: what `tell` decides does not depend on candidates recorded later.
        Each session's verdicts are told under that session's settings.
        """
        state, make = self.state, TakenVerdict._make
        for row in self._connection.execute(CANDIDATES, (len(state.lineage),)):
            state.lineage.add(*row)
        for after, until, settings in sessions(self._connection):
            if until <= self._evaluation:
                continue
            state.configure(settings)
            rows = self._connection.execute(EVALUATIONS, (max(after, self._evaluation), until))
            for number, environment, run, charged, gpu_s, at, *verdict in rows:
                told = ToldVerdict(number, environment, run, charged, gpu_s, at, make(verdict))
                yield told
                self._evaluation = told.number
                state.tell(told.environment, told.verdict)


def replay(connection: sqlite3.Connection) -> SearchState:
    """What the last process had in memory when it told the last evaluation."""
    replayed = Replay(connection)
    for _ in replayed.advance():
        pass
    return replayed.state


def sessions(connection: sqlite3.Connection) -> list[tuple[int, int, PopulationSettings]]:
    """(after evaluation, until evaluation, settings) of every session, oldest first."""
    rows = connection.execute("SELECT after_evaluation, settings FROM runs ORDER BY id").fetchall()
    ends = [after for after, _ in rows[1:]] + [FOREVER]
    return [
        (after, until, PopulationSettings.from_data(loads(settings)))
        for (after, settings), until in zip(rows, ends, strict=False)
    ]
