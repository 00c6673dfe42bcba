"""How much was done and spent, over all sessions of a population: what budgets are held against."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evo_kernel.types import Call, Evaluation, Proposal, Purpose
from populations.connect import fetch_one, has_table
from populations.encoding import loads

NO_PROPOSAL = "no proposal"
"""The kind of event that counts a stretch of attempts that left nothing: how many, and how often what was said."""


@dataclass(frozen=True)
class SearchTotals:
    """A snapshot. `evaluations`: those charged, by purpose, probes of operators included."""

    attempts: int  # asked for; planted seeds are not attempts
    candidates: int  # seeds included
    failures: int  # attempts that ended without a candidate
    evaluations: Mapping[str, int]
    passed: int  # candidates that stand as passed in this environment
    gpu_s: float
    wall_s: float  # the sessions' durations, this one's so far included
    dollars: float  # of calls whose price is known
    tokens: int  # in and out
    calls: int
    best_score: float | None  # in this environment

    @property
    def charged(self) -> int:
        """Evaluations of every purpose together."""
        return sum(self.evaluations.values())


@dataclass
class Tally:
    """What only grows. Not thread-safe: the population's lock guards it."""

    attempts: int = 0
    failures: int = 0
    evaluations: dict[str, int] = field(default_factory=dict)
    gpu_s: float = 0.0
    dollars: float = 0.0
    tokens: int = 0
    calls: int = 0

    def spend(self, proposal: Proposal, calls: Sequence[Call]) -> None:
        """`calls`: those of the proposal's that were not counted when they were made."""
        if proposal.probes:
            self.charge(Purpose.PROBE, proposal.probes)
        self.call(calls)

    def call(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self.calls += 1
            self.tokens += call.tokens_in + call.tokens_out
            self.dollars += call.dollars or 0.0

    def judge(self, evaluation: Evaluation) -> None:
        self.gpu_s += evaluation.gpu_s
        for purpose, count in evaluation.charged.items():
            self.charge(purpose, count)

    def work(self, charged: Mapping[str, int], gpu_s: float) -> None:
        """Evaluations that an agent asked for in the middle of an attempt."""
        self.gpu_s += gpu_s
        for purpose, count in charged.items():
            self.charge(purpose, count)

    def charge(self, purpose: str, count: int) -> None:
        if count:
            self.evaluations[str(purpose)] = self.evaluations.get(str(purpose), 0) + count


def read_tally(connection: sqlite3.Connection) -> Tally:
    """The same sums as the live process had, from the file (dollars up to the order of addition)."""
    tally = Tally()
    tally.attempts = fetch_one(connection, "SELECT COUNT(*) FROM attempts WHERE parent IS NOT NULL")
    tally.failures = fetch_one(connection, "SELECT COUNT(*) FROM failures")
    for (data,) in connection.execute("SELECT data FROM events WHERE kind = ?", (NO_PROPOSAL,)):
        count = loads(data)["count"]
        tally.attempts, tally.failures = tally.attempts + count, tally.failures + count
    for table in ("candidates", "failures"):
        tally.charge(Purpose.PROBE, fetch_one(connection, f"SELECT SUM(probes) FROM {table}") or 0)
    for charged, times in connection.execute("SELECT charged, COUNT(*) FROM evaluations GROUP BY charged"):
        for purpose, count in loads(charged).items():
            tally.charge(purpose, count * times)
    for (gpu_s,) in connection.execute("SELECT gpu_s FROM evaluations WHERE gpu_s != 0 ORDER BY id"):
        tally.gpu_s += gpu_s
    if has_table(connection, "turns"):
        sql = "SELECT charged, gpu_s FROM turns WHERE charged != '{}' OR gpu_s != 0 ORDER BY attempt, position"
        for charged, gpu_s in connection.execute(sql):
            tally.work(loads(charged), gpu_s)
    sql = "SELECT dollars, tokens_in + tokens_out FROM calls ORDER BY attempt, position"
    for dollars, tokens in connection.execute(sql):
        tally.calls += 1
        tally.tokens += tokens
        tally.dollars += dollars or 0.0
    return tally


def read_wall_s(connection: sqlite3.Connection) -> float:
    """Seconds from each session's start to the last thing it left behind, summed."""
    rows = connection.execute(
        "SELECT run, MAX(at) FROM (SELECT run, at FROM attempts UNION ALL SELECT run, at FROM evaluations"
        " UNION ALL SELECT run, at FROM events) GROUP BY run"
    )
    last = dict(rows.fetchall())
    began = connection.execute("SELECT id, at FROM runs ORDER BY id").fetchall()
    turns, total = has_table(connection, "turns"), 0.0
    for (run, at), (_, until) in zip(began, [*began[1:], (0, math.inf)], strict=False):
        # A turn may go on with an attempt of an earlier session, so the clock says whose it is.
        sql = "SELECT MAX(at) FROM turns WHERE at >= ? AND at < ?"
        turn = fetch_one(connection, sql, (at, until)) if turns else None
        total += max(at, last.get(run, at), turn or at) - at
    return total
