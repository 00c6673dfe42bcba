"""What came of operators and language models, and what that cost. Everything here only reads."""

from __future__ import annotations

import sqlite3

from populations.connect import fetch_one
from populations.leaderboard import STANDINGS
from populations.views import ModelUse, OperatorUse


def model_uses(connection: sqlite3.Connection) -> tuple[ModelUse, ...]:
    """What was asked of language models, those asked most first."""
    remarked = fetch_one(connection, "SELECT COUNT(*) FROM sqlite_master WHERE name = 'call_remarks'")
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
    FROM ended LEFT JOIN ({STANDINGS}) s ON s.candidate = ended.candidate LEFT JOIN paid USING (attempt)
    GROUP BY operator ORDER BY operator
    """
    return tuple(OperatorUse(*row) for row in connection.execute(sql, (environment,)))
