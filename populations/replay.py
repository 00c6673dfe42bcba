"""Resume is replay: the search state of a file, from its rows in the order of their ids."""

from __future__ import annotations

import sqlite3

from populations.encoding import loads
from populations.settings import PopulationSettings
from populations.state import SearchState, TakenVerdict

CANDIDATES = (
    "SELECT c.attempt, c.source, IFNULL(c.strategy, 0), IFNULL(c.parent, 0), c.island, c.generation"
    " FROM candidates c ORDER BY c.id"
)
EVALUATIONS = (
    "SELECT n.key, e.candidate, e.purpose, e.status, e.score, e.log_us, e.log_variance, e.light_share, e.cell,"
    " e.plan_key, e.cost, e.fresh, e.witnessed FROM evaluations e JOIN environments n ON n.id = e.environment"
    " WHERE e.id > ? AND e.id <= ? ORDER BY e.id"
)
FOREVER = 2**62


def replay(connection: sqlite3.Connection) -> SearchState:
    """What the last process had in memory when it told the last evaluation.

    All candidates come before the first verdict: what `tell` decides does not depend on candidates recorded later.
    Each session's verdicts are told under that session's settings.
    """
    state = SearchState()
    for row in connection.execute(CANDIDATES):
        state.lineage.add(*row)
    make = TakenVerdict._make
    for after, until, settings in sessions(connection):
        state.configure(settings)
        for row in connection.execute(EVALUATIONS, (after, until)):
            state.tell(row[0], make(row[1:]))
    return state


def sessions(connection: sqlite3.Connection) -> list[tuple[int, int, PopulationSettings]]:
    """(after evaluation, until evaluation, settings) of every session, oldest first."""
    rows = connection.execute("SELECT after_evaluation, settings FROM runs ORDER BY id").fetchall()
    ends = [after for after, _ in rows[1:]] + [FOREVER]
    return [
        (after, until, PopulationSettings.from_data(loads(settings)))
        for (after, settings), until in zip(rows, ends, strict=False)
    ]
