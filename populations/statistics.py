"""What was done and spent, and what came of it: sums over a population's rows. Everything here only reads.

`environment`: a row of environments; None in a file without any, of which nothing can be said.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evo_kernel.types import Evaluation
from populations.connect import fetch_dicts, fetch_one
from populations.encoding import loads
from populations.external_tickets import open_tickets
from populations.row_decoders import fetch_evaluation
from populations.views import ModelUse, OperatorUse

NO_PROPOSAL = "no proposal"
"""The kind of event that counts a stretch of attempts that left nothing: how many, and how often what was said."""


@dataclass(frozen=True)
class Totals:
    """What was done and spent over all sessions. `evaluations`: those charged, by purpose, probes included."""

    attempts: int  # asked for; planted seeds are not attempts
    failures: int  # attempts that ended without a candidate
    evaluations: Mapping[str, int]
    gpu_s: float
    dollars: float  # of calls whose price is known
    tokens: int  # in and out
    calls: int

    @property
    def charged(self) -> int:
        """Evaluations of every purpose together."""
        return sum(self.evaluations.values())


@dataclass(frozen=True)
class SearchTotals(Totals):
    """A snapshot of an open population. `passed` and `best_score`: in its environment."""

    candidates: int  # seeds included
    passed: int
    wall_s: float  # the sessions' durations, this one's so far included
    best_score: float | None


def totals(connection: sqlite3.Connection) -> Totals:
    """What budgets are held against."""
    spent: dict[str, dict[str, Any]] = {}
    for what, of, amount in connection.execute("SELECT what, of, SUM(amount) FROM ledger GROUP BY what, of"):
        spent.setdefault(what, {})[of] = amount
    events = connection.execute("SELECT data FROM events WHERE kind = ?", (NO_PROPOSAL,))
    left_nothing = sum(loads(data)["count"] for (data,) in events)
    sums = {what: sum(amounts.values()) for what, amounts in spent.items()}
    return Totals(
        attempts=fetch_one(connection, "SELECT COUNT(*) FROM attempts WHERE parent IS NOT NULL") + left_nothing,
        failures=fetch_one(connection, "SELECT COUNT(*) FROM failures") + left_nothing,
        evaluations=spent.get("evaluations", {}),
        gpu_s=sums.get("gpu", 0.0),
        dollars=sums.get("money", 0.0),
        tokens=sums.get("tokens", 0),
        calls=sums.get("calls", 0),
    )


def session_seconds(connection: sqlite3.Connection) -> dict[int, tuple[float, float]]:
    """Session → (Unix time when it began, seconds from then to the last thing that it left behind)."""
    last = dict(
        connection.execute(
            "SELECT run, MAX(at) FROM (SELECT run, at FROM attempts UNION ALL SELECT run, at FROM evaluations"
            " UNION ALL SELECT run, at FROM events) GROUP BY run"
        )
    )
    began = connection.execute("SELECT id, at FROM runs ORDER BY id").fetchall()
    found = {}
    for (run, at), (_, until) in zip(began, [*began[1:], (0, math.inf)], strict=False):
        # A turn may go on with an attempt of an earlier session, so the clock says whose it is.
        turn = fetch_one(connection, "SELECT MAX(at) FROM turns WHERE at >= ? AND at < ?", (at, until))
        found[run] = at, max(at, last.get(run, at), turn or at) - at
    return found


def wall_s(connection: sqlite3.Connection) -> float:
    """The sessions' durations, summed."""
    return sum(seconds for _, seconds in session_seconds(connection).values())


def unended_attempts(connection: sqlite3.Connection, live: bool) -> tuple[int, int, int]:
    """Attempts with neither candidate nor failure: (under way, abandoned, in the hands of somebody outside).

    `live`: a process writes the file; what its session began is under way.
    """
    unended = (
        " FROM attempts a WHERE NOT EXISTS (SELECT 1 FROM candidates c WHERE c.attempt = a.id)"
        " AND NOT EXISTS (SELECT 1 FROM failures f WHERE f.attempt = a.id)"
    )
    handed_out = {ticket.attempt for ticket in open_tickets(connection)}
    under_way: set[int] = set()
    if live:
        rows = connection.execute(f"SELECT a.id {unended} AND a.run = (SELECT MAX(id) FROM runs)")
        under_way = {attempt for (attempt,) in rows} - handed_out
    abandoned = fetch_one(connection, f"SELECT COUNT(*) {unended}") - len(under_way) - len(handed_out)
    return len(under_way), abandoned, len(handed_out)


def confirmation(connection: sqlite3.Connection, environment: int | None, candidate: int) -> Evaluation | None:
    """What settled whether a candidate may be a champion: its refutation, else its latest confirmation."""
    sql = (
        "SELECT id FROM evaluations WHERE candidate = ? AND environment = ? AND purpose = 'confirm'"
        " AND status != 'infra_error' ORDER BY status = 'passed', id DESC LIMIT 1"
    )
    number = fetch_one(connection, sql, (candidate, environment))
    return fetch_evaluation(connection, number) if number else None


def history(connection: sqlite3.Connection, environment: int | None) -> list[dict[str, Any]]:
    """How the best grew: the rows of the view `improvements`, with what had been spent by then: `evaluations`, `hours`
    (pauses between sessions left out) and `dollars`.

    What an attempt spent before its verdict counts from the first verdict on that attempt or a later one.
    """
    rows = fetch_dicts(connection, "SELECT * FROM improvements WHERE environment_id = ?", (environment,))
    sessions = session_seconds(connection)
    evaluations, dollars, evaluation, attempt = 0, 0.0, 0, 0
    for row in rows:
        evaluations += _charged(connection, "evaluations", "id", evaluation, row["evaluation"])
        evaluations += _charged(connection, "turns", "attempt", attempt, row["attempt"])
        for column, table in (("probes", "candidates"), ("probes", "failures"), ("dollars", "calls")):
            sql = f"SELECT TOTAL({column}) FROM {table} WHERE attempt > ? AND attempt <= ?"
            amount = fetch_one(connection, sql, (attempt, row["attempt"]))
            evaluations, dollars = (
                (evaluations, dollars + amount) if table == "calls" else (evaluations + int(amount), dollars)
            )
        evaluation, attempt = row["evaluation"], max(attempt, row["attempt"])
        earlier = sum(seconds for run, (_, seconds) in sessions.items() if run < row["session"])
        hours = (earlier + row["at"] - sessions[row["session"]][0]) / 3600
        row |= {"evaluations": evaluations, "hours": hours, "dollars": dollars}
    return rows


def _charged(connection: sqlite3.Connection, table: str, column: str, after: int, until: int) -> int:
    """Evaluations that rows of a table were charged with, whose column lies in (after, until]."""
    sql = f"SELECT charged, COUNT(*) FROM {table} WHERE {column} > ? AND {column} <= ? GROUP BY charged"
    return sum(sum(loads(charged).values()) * times for charged, times in connection.execute(sql, (after, until)))


def strategies(connection: sqlite3.Connection, environment: int | None) -> list[dict[str, Any]]:
    """Each strategy by name: how often it was tried, passed, and made the best of all children's gains."""
    sql = (
        "SELECT strategy AS name, family, tried, passed, mean_log_gain, best_log_gain FROM strategy_credit"
        " WHERE environment_id = ?"
    )
    return fetch_dicts(connection, sql, (environment,))


def model_uses(connection: sqlite3.Connection) -> tuple[ModelUse, ...]:
    """What was asked of language models, those asked most first."""
    sql = (
        "SELECT model, COUNT(*), SUM(tokens_in), SUM(tokens_out), SUM(tokens_cached), IFNULL(SUM(dollars), 0.0),"
        " SUM(dollars IS NULL), SUM(COALESCE(r.error, c.error, '') != ''), SUM(wall_s) FROM calls c"
        " LEFT JOIN call_remarks r ON r.attempt = c.attempt AND r.position = c.position"
        " GROUP BY model ORDER BY COUNT(*) DESC, model"
    )
    return tuple(ModelUse(*row) for row in connection.execute(sql))


def operator_uses(connection: sqlite3.Connection, environment: int | None) -> tuple[OperatorUse, ...]:
    """What came of each operator's attempts; planted kernels are nobody's."""
    sql = """
    WITH ended AS (
        SELECT c.attempt, c.operator, c.id AS candidate FROM candidates c WHERE c.parent IS NOT NULL
        UNION ALL SELECT f.attempt, f.operator, NULL FROM failures f
    ), paid AS (
        SELECT c.attempt, SUM(dollars) AS dollars, SUM(COALESCE(r.error, c.error, '') = '') AS answers FROM calls c
        LEFT JOIN call_remarks r ON r.attempt = c.attempt AND r.position = c.position GROUP BY c.attempt
    )
    SELECT operator, COUNT(*), COUNT(ended.candidate), SUM(IFNULL(s.status = 'passed', 0)),
        IFNULL(SUM(dollars), 0.0), MAX(s.score), SUM(ended.candidate IS NOT NULL AND IFNULL(answers, 0) = 0)
    FROM ended LEFT JOIN (SELECT * FROM scores WHERE environment_id = ?) s ON s.candidate = ended.candidate
    LEFT JOIN paid USING (attempt) GROUP BY operator ORDER BY operator
    """
    return tuple(OperatorUse(*row) for row in connection.execute(sql, (environment,)))
