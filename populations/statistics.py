"""What came of candidates, strategies, operators and language models, and what that cost. Everything here only reads.

`environment`: a row of environments; None in a file without any, of which nothing can be said.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from evo_kernel.types import Evaluation
from populations.connect import fetch_dicts, fetch_one, has_table
from populations.external_tickets import open_tickets
from populations.row_decoders import fetch_evaluation
from populations.views import ModelUse, OperatorUse

LATEST_SCORES = """
SELECT candidate, MAX(id) AS latest, status, score, log_us FROM evaluations
WHERE environment = ? AND purpose = 'score' AND status != 'infra_error' GROUP BY candidate
"""  # SQLite takes the bare columns from the row that holds the maximum


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


def pending(connection: sqlite3.Connection) -> int:
    """Candidates that nothing but infra_error was said about, in any environment."""
    sql = (
        "SELECT COUNT(*) FROM candidates c WHERE NOT EXISTS (SELECT 1 FROM evaluations e WHERE e.candidate = c.id"
        " AND e.purpose = 'score' AND e.status != 'infra_error')"
    )
    return fetch_one(connection, sql)


def confirmation(connection: sqlite3.Connection, environment: int | None, candidate: int) -> Evaluation | None:
    """What settled whether a candidate may be a champion: its refutation, else its latest confirmation."""
    sql = (
        "SELECT id FROM evaluations WHERE candidate = ? AND environment = ? AND purpose = 'confirm'"
        " AND status != 'infra_error' ORDER BY status = 'passed', id DESC LIMIT 1"
    )
    number = fetch_one(connection, sql, (candidate, environment))
    return fetch_evaluation(connection, number) if number else None


def history(connection: sqlite3.Connection, environment: int | None) -> list[dict[str, Any]]:
    """How the best grew: a row for every score that beat all before it."""
    sql = (
        "SELECT e.id AS evaluation, c.attempt, e.candidate, s.name AS strategy, e.score, e.log_us, e.at"
        " FROM evaluations e JOIN candidates c ON c.id = e.candidate LEFT JOIN strategies s ON s.id = c.strategy"
        " WHERE e.environment = ? AND e.purpose = 'score' AND e.log_us IS NOT NULL ORDER BY e.id"
    )
    rows, best = [], float("inf")
    for row in fetch_dicts(connection, sql, (environment,)):
        if row["log_us"] < best:
            best = row["log_us"]
            rows.append(row)
    return rows


def strategies(connection: sqlite3.Connection, environment: int | None) -> list[dict[str, Any]]:
    """Each strategy by name: how often it was tried, passed, and made the best of all children's gains."""
    return fetch_dicts(
        connection,
        "SELECT s.name, s.family, COUNT(*) AS tried, SUM(e.status = 'passed') AS passed,"
        " AVG(p.log_us - e.log_us) AS mean_log_gain, MAX(p.log_us - e.log_us) AS best_log_gain"
        " FROM candidates c JOIN strategies s ON s.id = c.strategy"
        f" JOIN ({LATEST_SCORES}) e ON e.candidate = c.id LEFT JOIN ({LATEST_SCORES}) p ON p.candidate = c.parent"
        " GROUP BY s.name, s.family ORDER BY best_log_gain DESC",
        (environment, environment),
    )


def model_uses(connection: sqlite3.Connection) -> tuple[ModelUse, ...]:
    """What was asked of language models, those asked most first."""
    remarked = has_table(connection, "call_remarks")
    joined = "LEFT JOIN call_remarks r ON r.attempt = c.attempt AND r.position = c.position" if remarked else ""
    error = "COALESCE(r.error, c.error, '')" if remarked else "IFNULL(c.error, '')"
    sql = (
        "SELECT model, COUNT(*), SUM(tokens_in), SUM(tokens_out), SUM(tokens_cached), IFNULL(SUM(dollars), 0.0),"
        f" SUM(dollars IS NULL), SUM({error} != ''), SUM(wall_s) FROM calls c {joined}"
        " GROUP BY model ORDER BY COUNT(*) DESC, model"
    )
    return tuple(ModelUse(*row) for row in connection.execute(sql))


def operator_uses(connection: sqlite3.Connection, environment: int | None) -> tuple[OperatorUse, ...]:
    """What came of each operator's attempts; planted kernels are nobody's. `environment`: a row of environments."""
    sql = f"""
    WITH ended AS (
        SELECT c.attempt, c.operator, c.id AS candidate FROM candidates c WHERE c.parent IS NOT NULL
        UNION ALL SELECT f.attempt, f.operator, NULL FROM failures f
    ), paid AS (SELECT attempt, SUM(dollars) AS dollars FROM calls GROUP BY attempt)
    SELECT operator, COUNT(*), COUNT(ended.candidate), SUM(IFNULL(s.status = 'passed', 0)),
        IFNULL(SUM(dollars), 0.0), MAX(s.score)
    FROM ended LEFT JOIN ({LATEST_SCORES}) s ON s.candidate = ended.candidate LEFT JOIN paid USING (attempt)
    GROUP BY operator ORDER BY operator
    """
    return tuple(OperatorUse(*row) for row in connection.execute(sql, (environment,)))
