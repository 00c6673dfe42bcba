"""Looking into a population without touching it: what `status`, `show`, `tree` and `export` read.

Works while a search writes the file, and from a read-only folder. Imports nothing slow: no numpy, no networkx, no
sqlite-utils (`lineage.py` brings networkx when a graph is asked for).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evo_kernel.errors import PopulationError
from evo_kernel.types import Environment, Evaluation, PipelineState, Proposal, Relative, TaskCard
from populations import lineage
from populations.connect import connect_reader
from populations.counters import read_tally, read_wall_s
from populations.fetching import (
    decode_card,
    fetch_baseline_faults,
    fetch_baselines,
    fetch_ceilings,
    fetch_environment,
    fetch_evaluation,
    fetch_proposal,
    fetch_strategy,
)
from populations.handed import HandedOut, fetch_ticket, open_tickets
from populations.lock import announced, owner

if TYPE_CHECKING:
    import networkx as nx

_Values = TypeVar("_Values")

STANDINGS = """
SELECT candidate, MAX(id) AS latest, status, score, log_us FROM evaluations
WHERE environment = ? AND purpose = 'score' AND status != 'infra_error' GROUP BY candidate
"""  # SQLite takes the bare columns from the row that holds the maximum


@dataclass(frozen=True)
class Session:
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

    @property
    def evaluation(self) -> Evaluation | None:
        """The latest score."""
        return next((one for one in reversed(self.evaluations) if one.purpose == "score"), None)


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


@dataclass(frozen=True)
class Best:
    """The fastest candidate of an environment."""

    candidate: int
    score: float | None
    confirmed: bool
    claimed: float | None = None  # of what is confirmed: the gain over the first kernel that the search had measured,
    survived: float | None = None  # and the share of it that the confirmation still found


@dataclass(frozen=True)
class Status:
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
    models: tuple[ModelUse, ...] = ()  # language models, those that were asked most first
    operators: tuple[OperatorUse, ...] = ()  # by name

    def as_data(self) -> dict[str, Any]:
        data = asdict(self)
        data["environment"] = None
        if self.environment is not None:
            data["environment"] = {**asdict(self.environment), "label": self.environment.label}
        for one, use in zip(data["models"], self.models, strict=True):
            one["cached_share"] = use.cached_share
        data["writer"] = {"pid": self.writer[0], "host": self.writer[1]} if self.writer else None
        if self.pipeline is not None:
            data["pipeline"]["age_s"] = self.pipeline.age_s(time.time())
        return data


class PopulationReader:
    """A read-only view of a population file; use it as a context manager. For one thread."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.connection = connect_reader(self.path)

    def __enter__(self) -> PopulationReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    # ---- overview -------------------------------------------------------------------------------------------------

    @property
    def task(self) -> TaskCard:
        return decode_card(json.loads(self._one("SELECT card FROM tasks ORDER BY id LIMIT 1")))

    @property
    def task_identity(self) -> str:
        return self._one("SELECT identity FROM tasks ORDER BY id LIMIT 1")

    @cached_property
    def environment_row(self) -> int | None:
        """Row of the environment that numbers are shown in: that of the latest score, else of the latest session."""
        found = lineage.latest_environment(self.connection)
        return found or self._one("SELECT environment FROM runs ORDER BY id DESC LIMIT 1")

    @property
    def environment(self) -> Environment | None:
        row = self.environment_row
        return fetch_environment(self.connection, row) if row else None

    def sessions(self) -> list[Session]:
        """Oldest first; the last one's `config` is what `resume` goes on with."""
        sql = "SELECT id, seed, environment, config, settings, pid, host, at FROM runs ORDER BY id"
        return [
            Session(
                number, seed, fetch_environment(self.connection, environment), json.loads(config),
                json.loads(settings), pid, host, at,
            )
            for number, seed, environment, config, settings, pid, host, at in self.connection.execute(sql)
        ]  # fmt: skip

    def status(self) -> Status:
        connection = self.connection
        tally, writer = read_tally(connection), owner(self.path)
        unfinished = (
            "SELECT COUNT(*) FROM attempts a WHERE NOT EXISTS (SELECT 1 FROM candidates c WHERE c.attempt = a.id)"
            " AND NOT EXISTS (SELECT 1 FROM failures f WHERE f.attempt = a.id)"
        )
        open_attempts, unended = 0, self._one(unfinished)
        handed_out = {ticket.attempt for ticket in open_tickets(connection)}
        if writer is not None:
            under_way = "SELECT a.id" + unfinished.removeprefix("SELECT COUNT(*)")
            rows = connection.execute(f"{under_way} AND a.run = (SELECT MAX(id) FROM runs)")
            open_attempts = len({attempt for (attempt,) in rows} - handed_out)
        verdicts = dict(
            connection.execute(
                f"SELECT status, COUNT(*) FROM ({STANDINGS}) GROUP BY status ORDER BY status", (self.environment_row,)
            )
        )
        return Status(
            path=str(self.path),
            task=self._one("SELECT name FROM tasks ORDER BY id LIMIT 1"),
            task_identity=self.task_identity,
            environment=self.environment,
            sessions=self._one("SELECT COUNT(*) FROM runs"),
            attempts=tally.attempts,
            open_attempts=open_attempts,
            abandoned=unended - open_attempts - len(handed_out),
            handed_out=len(handed_out),
            failures=tally.failures,
            candidates=self._one("SELECT COUNT(*) FROM candidates"),
            pending=len(self.pending()),
            verdicts=verdicts,
            evaluations=dict(tally.evaluations),
            gpu_s=tally.gpu_s,
            wall_s=read_wall_s(connection),
            dollars=tally.dollars,
            tokens=tally.tokens,
            best=self.best(),
            champion=self.champion(),
            writer=writer,
            pipeline=self.pipeline(),
            ceilings=self.ceilings(),
            baselines=self.baselines(),
            baseline_faults=self.baseline_faults(),
            models=self.models(),
            operators=self.operators(),
        )

    def models(self) -> tuple[ModelUse, ...]:
        """What was asked of language models, those asked most first."""
        remarked = self._one("SELECT COUNT(*) FROM sqlite_master WHERE name = 'call_remarks'")
        joined = "LEFT JOIN call_remarks r ON r.attempt = c.attempt AND r.position = c.position" if remarked else ""
        error = "COALESCE(r.error, c.error, '')" if remarked else "IFNULL(c.error, '')"
        sql = (
            "SELECT model, COUNT(*), SUM(tokens_in), SUM(tokens_out), SUM(tokens_cached), IFNULL(SUM(dollars), 0.0),"
            f" SUM(dollars IS NULL), SUM({error} != ''), SUM(wall_s) FROM calls c {joined}"
            " GROUP BY model ORDER BY COUNT(*) DESC, model"
        )
        return tuple(ModelUse(*row) for row in self.connection.execute(sql))

    def operators(self) -> tuple[OperatorUse, ...]:
        """What came of each operator's attempts; planted kernels are nobody's."""
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
        return tuple(OperatorUse(*row) for row in self.connection.execute(sql, (self.environment_row,)))

    def pipeline(self) -> PipelineState | None:
        """What the process that writes the file said last of what it is doing; None while nobody writes it."""
        said = announced(self.path)
        try:
            return PipelineState(**said) if said else None
        except TypeError:  # said by another version
            return None

    def ceilings(self, environment: Environment | None = None) -> dict[str, float]:
        """What the machine of an environment, else of the one shown, reaches at most; empty where not measured."""
        environment = environment or self.environment
        return fetch_ceilings(self.connection, environment.key) if environment else {}

    def baselines(self) -> dict[str, dict[str, float]]:
        """µs by case and name, in the environment shown; hidden cases stay hidden."""
        return self._shown(fetch_baselines(self.connection, self.environment_row))

    def baseline_faults(self) -> dict[str, dict[str, str]]:
        """Why a baseline has no time in the environment shown, by case and name; hidden cases stay hidden."""
        return self._shown(fetch_baseline_faults(self.connection, self.environment_row))

    def tickets(self) -> list[HandedOut]:
        """Attempts in the hands of somebody outside that may still be told, oldest first."""
        return open_tickets(self.connection)

    def ticket(self, attempt: int) -> HandedOut:
        """Raises PopulationError when this attempt was not handed out."""
        return fetch_ticket(self.connection, attempt)

    def pending(self) -> list[int]:
        """Candidates that nothing but infra_error was said about, in any environment."""
        sql = (
            "SELECT id FROM candidates c WHERE NOT EXISTS (SELECT 1 FROM evaluations e WHERE e.candidate = c.id"
            " AND e.purpose = 'score' AND e.status != 'infra_error') ORDER BY id"
        )
        return [number for (number,) in self.connection.execute(sql)]

    def best(self, environment: int | None = None) -> Best | None:
        """The fastest by its latest score that no confirmation refuted; `environment`: a row of environments."""
        row = environment or self.environment_row
        confirmations = self._confirmations(row)
        sql = (
            f"SELECT candidate, score FROM ({STANDINGS}) WHERE status = 'passed' AND log_us IS NOT NULL"
            " ORDER BY log_us, candidate"
        )
        for candidate, score in self.connection.execute(sql, (row,)):
            if confirmations.get(candidate, True):
                return self._best(candidate, score, candidate in confirmations, row)
        return None

    def champion(self, environment: int | None = None) -> Best | None:
        """The fastest confirmed candidate."""
        row = environment or self.environment_row
        confirmed = {candidate for candidate, passed in self._confirmations(row).items() if passed}
        sql = f"SELECT candidate, score FROM ({STANDINGS}) WHERE status = 'passed' ORDER BY log_us, candidate"
        for candidate, score in self.connection.execute(sql, (row,)):
            if candidate in confirmed:
                return self._best(candidate, score, True, row)
        return None

    def confirmation(self, candidate: int, environment: int | None = None) -> Evaluation | None:
        """What settled whether a candidate may be a champion: its refutation, else its latest confirmation."""
        sql = (
            "SELECT id FROM evaluations WHERE candidate = ? AND environment = ? AND purpose = 'confirm'"
            " AND status != 'infra_error' ORDER BY status = 'passed', id DESC LIMIT 1"
        )
        number = self._one(sql, (candidate, environment or self.environment_row))
        return fetch_evaluation(self.connection, number) if number else None

    def leaders(self, count: int) -> list[int]:
        """Candidates that passed and were not refuted, in the last session's environment; the fastest first."""
        row = self.environment_row
        refuted = {candidate for candidate, passed in self._confirmations(row).items() if not passed}
        sql = f"SELECT candidate FROM ({STANDINGS}) WHERE status = 'passed' AND log_us IS NOT NULL ORDER BY log_us"
        return [number for (number,) in self.connection.execute(sql, (row,)) if number not in refuted][:count]

    def history(self, environment: int | None = None) -> list[dict[str, Any]]:
        """How the best grew: a row for every score that beat all before it."""
        sql = (
            "SELECT e.id AS evaluation, c.attempt, e.candidate, s.name AS strategy, e.score, e.log_us, e.at"
            " FROM evaluations e JOIN candidates c ON c.id = e.candidate LEFT JOIN strategies s ON s.id = c.strategy"
            " WHERE e.environment = ? AND e.purpose = 'score' AND e.log_us IS NOT NULL ORDER BY e.id"
        )
        rows, best = [], float("inf")
        for row in self._dicts(sql, (environment or self.environment_row,)):
            if row["log_us"] < best:
                best = row["log_us"]
                rows.append(row)
        return rows

    # ---- one candidate --------------------------------------------------------------------------------------------

    def candidate(self, number: int) -> CandidateView:
        connection = self.connection
        sql = "SELECT attempt, island, generation, parent, at FROM candidates WHERE id = ?"
        row = connection.execute(sql, (number,)).fetchone()
        if row is None:
            last = self._one("SELECT COUNT(*) FROM candidates")
            raise PopulationError(f"{self.path} has no candidate {number}: they are numbered 1 to {last}.")
        attempt, island, generation, parent, at = row
        ids = connection.execute("SELECT id FROM evaluations WHERE candidate = ? ORDER BY id", (number,)).fetchall()
        children = connection.execute("SELECT id FROM candidates WHERE parent = ? ORDER BY id", (number,)).fetchall()
        return CandidateView(
            candidate=number,
            attempt=attempt,
            island=island,
            generation=generation,
            parent=parent,
            proposal=fetch_proposal(connection, number),
            evaluations=tuple(fetch_evaluation(connection, evaluation) for (evaluation,) in ids),
            children=tuple(child for (child,) in children),
            at=at,
        )

    def relative(self, number: int) -> Relative:
        """A candidate as operators see it, with its score in the environment shown."""
        view, environment = self.candidate(number), self.environment
        key = environment.key if environment else ""
        scores = [e for e in view.evaluations if e.purpose == "score" and e.environment.key == key]
        path = tuple(step.strategy for step in self.critical_path(number) if step.strategy is not None)
        evaluation = scores[-1] if scores else None
        return Relative(number, view.proposal.source, view.generation, view.island, evaluation, path)

    # ---- lists ----------------------------------------------------------------------------------------------------

    def events(self, limit: int = 50) -> list[dict[str, Any]]:
        """The latest, newest first: kind, data, at."""
        rows = self._dicts("SELECT id, run, kind, data, at FROM events ORDER BY id DESC LIMIT ?", (limit,))
        return [{**row, "data": json.loads(row["data"])} for row in rows]

    def failures(self, limit: int = 50) -> list[dict[str, Any]]:
        """Attempts that ended without a candidate, newest first, with the strategy that they had chosen."""
        rows = self._dicts(
            "SELECT attempt, operator, reason, parent, strategy, at FROM failures ORDER BY attempt DESC LIMIT ?",
            (limit,),
        )
        for row in rows:
            row["strategy"] = fetch_strategy(self.connection, row["strategy"]) if row["strategy"] else None
        return rows

    def notes(self, limit: int = 50) -> list[dict[str, Any]]:
        return self._dicts("SELECT id, attempt, author, text, at FROM notes ORDER BY id DESC LIMIT ?", (limit,))

    def strategies(self) -> list[dict[str, Any]]:
        """Each strategy by name: how often it was tried, passed, and made the best of all children's gains."""
        return self._dicts(
            f"SELECT s.name, s.family, COUNT(*) AS tried, SUM(e.status = 'passed') AS passed,"
            " AVG(p.log_us - e.log_us) AS mean_log_gain, MAX(p.log_us - e.log_us) AS best_log_gain"
            " FROM candidates c JOIN strategies s ON s.id = c.strategy"
            f" JOIN ({STANDINGS}) e ON e.candidate = c.id LEFT JOIN ({STANDINGS}) p ON p.candidate = c.parent"
            " GROUP BY s.name, s.family ORDER BY best_log_gain DESC",
            (self.environment_row, self.environment_row),
        )

    # ---- the lineage ----------------------------------------------------------------------------------------------

    def nodes(self, only: Iterable[int] | None = None) -> list[dict[str, Any]]:
        return list(lineage.nodes(self.connection, only))

    def critical_path(self, candidate: int) -> list[lineage.PathStep]:
        return lineage.critical_path(self.connection, candidate, self.environment_row)

    def graph(self, only: Iterable[int] | None = None) -> nx.DiGraph:
        return lineage.graph(self.connection, only)

    def export_graph(self, path: Path, only: Iterable[int] | None = None) -> None:
        lineage.export(self.connection, path, only)

    # ---- within ---------------------------------------------------------------------------------------------------

    def _confirmations(self, environment: int | None) -> dict[int, bool]:
        """Candidate -> whether it passed; one that failed once stays refuted."""
        sql = (
            "SELECT candidate, MIN(status = 'passed') FROM evaluations WHERE environment = ? AND purpose = 'confirm'"
            " AND status != 'infra_error' GROUP BY candidate"
        )
        return {candidate: bool(passed) for candidate, passed in self.connection.execute(sql, (environment,))}

    def _shown(self, by_case: dict[str, _Values]) -> dict[str, _Values]:
        shown = {case.name for case in self.task.cases} if by_case else set()
        return {case: values for case, values in by_case.items() if case in shown}

    def _best(self, candidate: int, score: float | None, confirmed: bool, environment: int | None) -> Best:
        told = self.confirmation(candidate, environment) if confirmed else None
        return Best(candidate, score, confirmed, told and told.claimed, told and told.survived)

    def _one(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        row = self.connection.execute(sql, parameters).fetchone()
        return row[0] if row else None

    def _dicts(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        cursor = self.connection.cursor()
        cursor.row_factory = sqlite3.Row
        return [dict(row) for row in cursor.execute(sql, parameters)]
