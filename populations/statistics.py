"""What a reader of a population is shown: frozen values, and sums over its rows of what was done, spent and gained.

`environment`: a row of environments; None in a file without any, of which nothing can be said.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evo_kernel.knobs import apply_knobs
from evo_kernel.types import Environment, Evaluation, PipelineState, Proposal, Source
from populations.connect import fetch_dicts, fetch_one
from populations.external_tickets import open_tickets
from populations.rows import loads


@dataclass(frozen=True)
class SessionView:
    """One time that the population was open for a search."""

    number: int
    seed: int
    environment: Environment
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    pid: int
    host: str
    began: float  # Unix time


@dataclass(frozen=True)
class CandidateView:
    """A candidate with everything that the file knows of it."""

    candidate: int
    attempt: int
    island: int
    generation: int
    parent: int | None
    proposal: Proposal  # source, operator, strategy, decisions, steps, calls
    evaluations: tuple[Evaluation, ...]  # of all purposes and environments, oldest first
    children: tuple[int, ...]
    at: float  # Unix time when it was recorded
    shown: str  # key of the environment that numbers are shown in

    @property
    def evaluation(self) -> Evaluation | None:
        """The latest score in the environment shown, as standings go by; the latest anywhere where there is none."""
        scores = [one for one in reversed(self.evaluations) if one.purpose == "score"]
        return max(
            scores, key=lambda one: (one.environment.key == self.shown, one.status != "infra_error"), default=None
        )

    @property
    def source(self) -> Source:
        """As it was scored (`evaluation`), the knobs written in; as it was proposed it is in `proposal`."""
        knobs = self.evaluation.knobs if self.evaluation is not None else ()
        return apply_knobs(self.proposal.source, knobs)


@dataclass(frozen=True)
class ModelUse:
    """What was asked of one language model, over all sessions; tries that failed are calls too."""

    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    tokens_cached: int  # of tokens_in, read from the provider's cache
    dollars: float  # of calls whose price is known
    unpriced: int  # calls whose price is not
    errors: int  # calls that brought no usable answer
    wall_s: float  # summed over calls, which overlap

    @property
    def cached_share(self) -> float:
        return self.tokens_cached / self.tokens_in if self.tokens_in else 0.0


@dataclass(frozen=True)
class OperatorUse:
    """What came of one operator's attempts."""

    operator: str
    attempts: int  # those that ended
    candidates: int
    passed: int  # in the environment shown
    dollars: float
    best_score: float | None
    by_rules: int  # candidates of attempts in which no language model answered


@dataclass(frozen=True)
class Best:
    """The fastest candidate of an environment."""

    candidate: int
    score: float | None
    confirmed: bool
    claimed: float | None = None  # of what is confirmed: the gain over the first kernel that the search had measured,
    survived: float | None = None  # and the share of it that the confirmation still found; None of modeled times
    hidden: float | None = None  # the gain over the first kernel on hidden cases,
    hidden_score: float | None = None  # and the score there


@dataclass(frozen=True)
class CaseTime:
    """A candidate's time on one case beside the least that bandwidth and arithmetic allow; None where not known."""

    us: float
    floor_us: float | None
    light_share: float | None


@dataclass(frozen=True)
class RunStatus:
    """A population in numbers; `as_data` is what `status --json` prints."""

    path: str
    task: str
    task_identity: str
    environment: Environment | None
    sessions: int
    attempts: int
    open_attempts: int  # under way, while a writer lives
    abandoned: int  # opened by a session that ended before they did
    handed_out: int  # in the hands of somebody outside, and good
    failures: int  # attempts that ended without a candidate
    candidates: int
    pending: int  # candidates without a verdict
    verdicts: Mapping[str, int]  # scores by status
    evaluations: Mapping[str, int]  # charged, by purpose
    gpu_s: float
    wall_s: float
    dollars: float
    tokens: int
    best: Best | None  # the fastest that no confirmation refuted
    champion: Best | None  # the fastest that was confirmed
    writer: tuple[int, str] | None  # (pid, host) of the live process that writes the file
    pipeline: PipelineState | None  # what that process said last of what it is doing; see its age
    ceilings: Mapping[str, float]  # of this environment's machine, by name with unit; empty where none were measured
    baselines: Mapping[str, Mapping[str, float]]  # µs by case and name
    baseline_faults: Mapping[str, Mapping[str, str]]  # why a baseline has no time, by case and name
    times: Mapping[str, CaseTime]  # of the leader, by case
    models: tuple[ModelUse, ...] = ()  # language models, those that were asked most first
    operators: tuple[OperatorUse, ...] = ()  # by name

    @property
    def leader(self) -> Best | None:
        """The champion; the best while nothing is confirmed."""
        return self.champion or self.best

    def as_data(self) -> dict[str, Any]:
        data = asdict(self)
        data["baselines_us"] = data.pop("baselines")  # the name that the cases of evaluations have for it
        data["environment"] = None
        if self.environment is not None:
            data["environment"] = {**asdict(self.environment), "label": self.environment.label}
        for one, use in zip(data["models"], self.models, strict=True):
            one["cached_share"] = use.cached_share
        data["writer"] = {"pid": self.writer[0], "host": self.writer[1]} if self.writer else None
        if self.pipeline is not None:
            data["pipeline"]["age_s"] = self.pipeline.age_s(time.time())
        return data


@dataclass(frozen=True)
class CellView:
    """A cell of the archive, over all islands."""

    name: str  # tensor-core path / data path / schedule / launches
    candidates: int  # that passed and lie in it
    elite: int  # the fastest of the islands' elites
    score: float | None


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
    attempts = fetch_one(connection, "SELECT COUNT(*) FROM attempts WHERE parent IS NOT NULL") + left_nothing
    failures = fetch_one(connection, "SELECT COUNT(*) FROM failures") + left_nothing
    paid = (sums.get("gpu", 0.0), sums.get("money", 0.0), sums.get("tokens", 0), sums.get("calls", 0))
    return Totals(attempts, failures, spent.get("evaluations", {}), *paid)


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
        span = "WHERE attempt > ? AND attempt <= ?"
        for table in ("candidates", "failures"):
            sql = f"SELECT IFNULL(SUM(probes), 0) FROM {table} {span}"
            evaluations += fetch_one(connection, sql, (attempt, row["attempt"]))
        dollars += fetch_one(connection, f"SELECT TOTAL(dollars) FROM calls {span}", (attempt, row["attempt"]))
        evaluation, attempt = row["evaluation"], max(attempt, row["attempt"])
        earlier = sum(seconds for run, (_, seconds) in sessions.items() if run < row["session"])
        hours = (earlier + row["at"] - sessions[row["session"]][0]) / 3600
        row |= {"evaluations": evaluations, "hours": hours, "dollars": dollars}
    return rows


def _charged(connection: sqlite3.Connection, table: str, column: str, after: int, until: int) -> int:
    """Evaluations that rows of a table were charged with, whose column lies in (after, until]."""
    of = f"{table}.{column}"
    sql = f"SELECT IFNULL(SUM(j.value), 0) FROM {table}, json_each(charged) j WHERE {of} > ? AND {of} <= ?"
    return fetch_one(connection, sql, (after, until))


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
