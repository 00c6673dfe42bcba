"""Who stands where in one environment: by its latest score, and by what confirmations said."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from evo_kernel.types import Evaluation
from populations.connect import fetch_dicts, fetch_one
from populations.row_decoders import fetch_evaluation
from populations.views import Best

STANDINGS = """
SELECT candidate, MAX(id) AS latest, status, score, log_us FROM evaluations
WHERE environment = ? AND purpose = 'score' AND status != 'infra_error' GROUP BY candidate
"""  # SQLite takes the bare columns from the row that holds the maximum


@dataclass(frozen=True)
class Standings:
    """Reads only. `environment`: a row of environments; None in a file without any, where nobody stands anywhere."""

    connection: sqlite3.Connection
    environment: int | None

    def best(self) -> Best | None:
        """The fastest by its latest score that no confirmation refuted."""
        confirmations = self._confirmations()
        sql = (
            f"SELECT candidate, score FROM ({STANDINGS}) WHERE status = 'passed' AND log_us IS NOT NULL"
            " ORDER BY log_us, candidate"
        )
        for candidate, score in self.connection.execute(sql, (self.environment,)):
            if confirmations.get(candidate, True):
                return self._best(candidate, score, candidate in confirmations)
        return None

    def champion(self) -> Best | None:
        """The fastest confirmed candidate."""
        confirmed = {candidate for candidate, passed in self._confirmations().items() if passed}
        sql = f"SELECT candidate, score FROM ({STANDINGS}) WHERE status = 'passed' ORDER BY log_us, candidate"
        for candidate, score in self.connection.execute(sql, (self.environment,)):
            if candidate in confirmed:
                return self._best(candidate, score, True)
        return None

    def confirmation(self, candidate: int) -> Evaluation | None:
        """What settled whether a candidate may be a champion: its refutation, else its latest confirmation."""
        sql = (
            "SELECT id FROM evaluations WHERE candidate = ? AND environment = ? AND purpose = 'confirm'"
            " AND status != 'infra_error' ORDER BY status = 'passed', id DESC LIMIT 1"
        )
        number = fetch_one(self.connection, sql, (candidate, self.environment))
        return fetch_evaluation(self.connection, number) if number else None

    def leaders(self, count: int) -> list[int]:
        """Candidates that passed and were not refuted, at most `count` (all if negative); the fastest first."""
        refuted = {candidate for candidate, passed in self._confirmations().items() if not passed}
        sql = f"SELECT candidate FROM ({STANDINGS}) WHERE status = 'passed' AND log_us IS NOT NULL ORDER BY log_us"
        found = self.connection.execute(sql, (self.environment,))
        return [number for (number,) in found if number not in refuted][: count if count >= 0 else None]

    def confirmed(self) -> list[int]:
        """Confirmed candidates; the fastest first."""
        confirmed = {candidate for candidate, passed in self._confirmations().items() if passed}
        return [number for number in self.leaders(-1) if number in confirmed]

    def verdicts(self) -> dict[str, int]:
        """Status → how many candidates have it."""
        sql = f"SELECT status, COUNT(*) FROM ({STANDINGS}) GROUP BY status ORDER BY status"
        return dict(self.connection.execute(sql, (self.environment,)))

    def history(self) -> list[dict[str, Any]]:
        """How the best grew: a row for every score that beat all before it."""
        sql = (
            "SELECT e.id AS evaluation, c.attempt, e.candidate, s.name AS strategy, e.score, e.log_us, e.at"
            " FROM evaluations e JOIN candidates c ON c.id = e.candidate LEFT JOIN strategies s ON s.id = c.strategy"
            " WHERE e.environment = ? AND e.purpose = 'score' AND e.log_us IS NOT NULL ORDER BY e.id"
        )
        rows, best = [], float("inf")
        for row in fetch_dicts(self.connection, sql, (self.environment,)):
            if row["log_us"] < best:
                best = row["log_us"]
                rows.append(row)
        return rows

    def strategies(self) -> list[dict[str, Any]]:
        """Each strategy by name: how often it was tried, passed, and made the best of all children's gains."""
        return fetch_dicts(
            self.connection,
            "SELECT s.name, s.family, COUNT(*) AS tried, SUM(e.status = 'passed') AS passed,"
            " AVG(p.log_us - e.log_us) AS mean_log_gain, MAX(p.log_us - e.log_us) AS best_log_gain"
            " FROM candidates c JOIN strategies s ON s.id = c.strategy"
            f" JOIN ({STANDINGS}) e ON e.candidate = c.id LEFT JOIN ({STANDINGS}) p ON p.candidate = c.parent"
            " GROUP BY s.name, s.family ORDER BY best_log_gain DESC",
            (self.environment, self.environment),
        )

    def _confirmations(self) -> dict[int, bool]:
        """Candidate -> whether it passed; one that failed once stays refuted."""
        sql = (
            "SELECT candidate, MIN(status = 'passed') FROM evaluations WHERE environment = ? AND purpose = 'confirm'"
            " AND status != 'infra_error' GROUP BY candidate"
        )
        found = self.connection.execute(sql, (self.environment,))
        return {candidate: bool(passed) for candidate, passed in found}

    def _best(self, candidate: int, score: float | None, confirmed: bool) -> Best:
        told = self.confirmation(candidate) if confirmed else None
        return Best(candidate, score, confirmed, told and told.claimed, told and told.survived)
