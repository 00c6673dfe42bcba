"""Resume is replay: the search state of a file, from its rows in the order of their ids."""

from __future__ import annotations

import sqlite3

from populations.encoding import loads
from populations.leaderboard import TakenVerdict
from populations.search_state import SearchState
from populations.settings import PopulationSettings

CANDIDATES = (
    "SELECT c.attempt, c.source, IFNULL(c.strategy, 0), IFNULL(c.parent, 0), c.island, c.generation"
    " FROM candidates c WHERE c.id > ? ORDER BY c.id"
)
EVALUATIONS = (
    "SELECT e.id, n.key, e.candidate, e.purpose, e.status, e.score, e.log_us, e.log_variance, e.light_share, e.cell,"
    " e.plan_key, e.cost, e.fresh, e.witnessed"
    " FROM evaluations e JOIN environments n ON n.id = e.environment WHERE e.id > ? AND e.id <= ? ORDER BY e.id"
)
FOREVER = 2**62


class Replay:
    """The search state of a file, and what was written since. For one thread; `advance` inside a transaction, where
    somebody may be writing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.state = SearchState()
        self._connection = connection
        self._evaluation = 0  # the last one that was told

    def advance(self) -> None:
        """Take in new rows. Each session's verdicts are told under that session's settings.

        All candidates come before the first verdict: what `tell` decides does not depend on candidates recorded later.
        """
        state, connection = self.state, self._connection
        for row in connection.execute(CANDIDATES, (len(state.lineage),)):
            state.lineage.add(*row)
        sessions = connection.execute("SELECT after_evaluation, settings FROM runs ORDER BY id").fetchall()
        ends = [after for after, _ in sessions[1:]] + [FOREVER]
        for (after, settings), until in zip(sessions, ends, strict=False):
            if until > self._evaluation:
                state.configure(PopulationSettings.from_data(loads(settings)))
                rows = connection.execute(EVALUATIONS, (max(after, self._evaluation), until))
                for self._evaluation, environment, *verdict in rows:
                    state.tell(environment, TakenVerdict._make(verdict))


def replay(connection: sqlite3.Connection) -> SearchState:
    """What the last process had in memory when it told the last evaluation."""
    replayed = Replay(connection)
    replayed.advance()
    return replayed.state
