"""Looking into a population without touching it: what `status`, `show`, `tree` and `export` read.

Works while a search writes the file, and from a read-only folder. Imports nothing slow: no numpy, no networkx, no
sqlite-utils (`lineage.py` brings networkx when a graph is asked for).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evo_kernel.errors import PopulationError
from evo_kernel.knobs import apply_knobs
from evo_kernel.types import Environment, Evaluation, PipelineState, ScoredCandidate, Source, TaskCard
from populations import lineage
from populations.connect import connect_reader, fetch_dicts, fetch_one
from populations.counters import read_tally, read_wall_s
from populations.external_tickets import HandedOut, fetch_ticket, open_tickets
from populations.leaderboard import Standings
from populations.lock import announced, owner
from populations.row_decoders import (
    decode_card,
    fetch_baseline_faults,
    fetch_baselines,
    fetch_ceilings,
    fetch_environment,
    fetch_evaluation,
    fetch_parents,
    fetch_proposal,
    fetch_source,
    fetch_strategy,
)
from populations.usage import model_uses, operator_uses
from populations.views import Best, CandidateView, ModelUse, OperatorUse, RunStatus, SessionView

if TYPE_CHECKING:
    import networkx as nx

_Values = TypeVar("_Values")


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
        return decode_card(json.loads(fetch_one(self.connection, "SELECT card FROM tasks ORDER BY id LIMIT 1")))

    @property
    def task_identity(self) -> str:
        return fetch_one(self.connection, "SELECT identity FROM tasks ORDER BY id LIMIT 1")

    @cached_property
    def environment_row(self) -> int | None:
        """Row of the environment that numbers are shown in: that of the latest score, else of the latest session."""
        found = lineage.latest_environment(self.connection)
        return found or fetch_one(self.connection, "SELECT environment FROM runs ORDER BY id DESC LIMIT 1")

    @property
    def environment(self) -> Environment | None:
        row = self.environment_row
        return fetch_environment(self.connection, row) if row else None

    def sessions(self) -> list[SessionView]:
        """Oldest first; the last one's `config` is what `resume` goes on with."""
        sql = "SELECT id, seed, environment, config, settings, pid, host, at FROM runs ORDER BY id"
        return [
            SessionView(
                number, seed, fetch_environment(self.connection, environment), json.loads(config),
                json.loads(settings), pid, host, at,
            )
            for number, seed, environment, config, settings, pid, host, at in self.connection.execute(sql)
        ]  # fmt: skip

    def status(self) -> RunStatus:
        connection = self.connection
        tally, writer = read_tally(connection), owner(self.path)
        unfinished = (
            "SELECT COUNT(*) FROM attempts a WHERE NOT EXISTS (SELECT 1 FROM candidates c WHERE c.attempt = a.id)"
            " AND NOT EXISTS (SELECT 1 FROM failures f WHERE f.attempt = a.id)"
        )
        open_attempts, unended = 0, fetch_one(self.connection, unfinished)
        handed_out = {ticket.attempt for ticket in open_tickets(connection)}
        if writer is not None:
            under_way = "SELECT a.id" + unfinished.removeprefix("SELECT COUNT(*)")
            rows = connection.execute(f"{under_way} AND a.run = (SELECT MAX(id) FROM runs)")
            open_attempts = len({attempt for (attempt,) in rows} - handed_out)
        return RunStatus(
            path=str(self.path),
            task=fetch_one(self.connection, "SELECT name FROM tasks ORDER BY id LIMIT 1"),
            task_identity=self.task_identity,
            environment=self.environment,
            sessions=fetch_one(self.connection, "SELECT COUNT(*) FROM runs"),
            attempts=tally.attempts,
            open_attempts=open_attempts,
            abandoned=unended - open_attempts - len(handed_out),
            handed_out=len(handed_out),
            failures=tally.failures,
            candidates=fetch_one(self.connection, "SELECT COUNT(*) FROM candidates"),
            pending=len(self.pending()),
            verdicts=self._standings().verdicts(),
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
        return model_uses(self.connection)

    def operators(self) -> tuple[OperatorUse, ...]:
        """What came of each operator's attempts; planted kernels are nobody's."""
        return operator_uses(self.connection, self.environment_row)

    def pipeline(self) -> PipelineState | None:
        """What the process that writes the file said last of what it is doing; None while nobody writes it."""
        return pipeline(self.path)

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
        return self._standings(environment).best()

    def champion(self, environment: int | None = None) -> Best | None:
        """The fastest confirmed candidate."""
        return self._standings(environment).champion()

    def confirmation(self, candidate: int, environment: int | None = None) -> Evaluation | None:
        """What settled whether a candidate may be a champion: its refutation, else its latest confirmation."""
        return self._standings(environment).confirmation(candidate)

    def leaders(self, count: int) -> list[int]:
        """Candidates that passed and were not refuted, in the environment shown; the fastest first. All if negative."""
        return self._standings().leaders(count)

    def confirmed(self) -> list[int]:
        """Confirmed candidates in the environment shown; the fastest first."""
        return self._standings().confirmed()

    def history(self, environment: int | None = None) -> list[dict[str, Any]]:
        """How the best grew: a row for every score that beat all before it."""
        return self._standings(environment).history()

    # ---- one candidate --------------------------------------------------------------------------------------------

    def candidate(self, number: int) -> CandidateView:
        connection = self.connection
        sql = "SELECT attempt, island, generation, parent, at FROM candidates WHERE id = ?"
        row = self._known(connection.execute(sql, (number,)).fetchone(), number)
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

    def proposed_source(self, number: int) -> Source:
        """A candidate's, without the rest of it, and without the knobs that it was scored with."""
        sql = "SELECT source FROM candidates WHERE id = ?"
        return fetch_source(self.connection, self._known(fetch_one(self.connection, sql, (number,)), number))

    def attempt_of(self, number: int) -> int:
        """The attempt that brought a candidate."""
        sql = "SELECT attempt FROM candidates WHERE id = ?"
        return self._known(fetch_one(self.connection, sql, (number,)), number)

    def parents(self, attempt: int) -> tuple[tuple[str, int], ...]:
        """(role, candidate) of all that an attempt drew on."""
        return fetch_parents(self.connection, attempt)

    def last_candidate(self) -> int:
        """The highest number; 0 of none."""
        return fetch_one(self.connection, "SELECT MAX(id) FROM candidates") or 0

    def relative(self, number: int) -> ScoredCandidate:
        """A candidate as operators see it, with its score in the environment shown."""
        view, environment = self.candidate(number), self.environment
        key = environment.key if environment else ""
        scores = [e for e in view.evaluations if e.purpose == "score" and e.environment.key == key]
        path = tuple(step.strategy for step in self.critical_path(number) if step.strategy is not None)
        evaluation = scores[-1] if scores else None
        source = apply_knobs(view.proposal.source, evaluation.knobs) if evaluation is not None else view.proposal.source
        return ScoredCandidate(number, source, view.generation, view.island, evaluation, path)

    # ---- lists ----------------------------------------------------------------------------------------------------

    def events(self, limit: int = 50) -> list[dict[str, Any]]:
        """The latest, newest first: kind, data, at."""
        rows = fetch_dicts(
            self.connection, "SELECT id, run, kind, data, at FROM events ORDER BY id DESC LIMIT ?", (limit,)
        )
        return [{**row, "data": json.loads(row["data"])} for row in rows]

    def failures(self, limit: int = 50) -> list[dict[str, Any]]:
        """Attempts that ended without a candidate, newest first, with the strategy that they had chosen."""
        rows = fetch_dicts(
            self.connection,
            "SELECT attempt, operator, reason, parent, strategy, at FROM failures ORDER BY attempt DESC LIMIT ?",
            (limit,),
        )
        for row in rows:
            row["strategy"] = fetch_strategy(self.connection, row["strategy"]) if row["strategy"] else None
        return rows

    def strategies(self) -> list[dict[str, Any]]:
        """Each strategy by name: how often it was tried, passed, and made the best of all children's gains."""
        return self._standings().strategies()

    # ---- the lineage ----------------------------------------------------------------------------------------------

    def nodes(self, only: Iterable[int] | None = None) -> list[dict[str, Any]]:
        return list(lineage.nodes(self.connection, only))

    def critical_path(self, candidate: int) -> list[lineage.PathStep]:
        return lineage.critical_path(self.connection, candidate, self.environment_row)

    def donors(self) -> list[tuple[int, int]]:
        """(donor, child) of every parent that is not a candidate's main one."""
        return lineage.donors(self.connection)

    def graph(self, only: Iterable[int] | None = None) -> nx.DiGraph:
        return lineage.graph(self.connection, only)

    def export_graph(self, path: Path, only: Iterable[int] | None = None) -> None:
        lineage.export(self.connection, path, only)

    # ---- within ---------------------------------------------------------------------------------------------------

    def _known(self, found: Any, number: int) -> Any:
        if found is None:
            raise PopulationError(
                f"{self.path} has no candidate {number}: they are numbered 1 to {self.last_candidate()}."
            )
        return found

    def _standings(self, environment: int | None = None) -> Standings:
        return Standings(self.connection, environment or self.environment_row)

    def _shown(self, by_case: dict[str, _Values]) -> dict[str, _Values]:
        shown = {case.name for case in self.task.cases} if by_case else set()
        return {case: values for case, values in by_case.items() if case in shown}


def pipeline(path: Path) -> PipelineState | None:
    """What the process that writes a population said last of what it is doing; None while nobody writes it."""
    said = announced(path)
    try:
        return PipelineState(**said) if said else None
    except TypeError:  # said by another version
        return None
