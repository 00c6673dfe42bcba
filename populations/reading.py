"""Read-only view of a population: what `status`, `show`, `tree`, `serve` and `export` read.

Works while a search writes the file, and from a read-only folder. Imports nothing slow: no numpy, no networkx, no
sqlite-utils (`lineage.py` brings networkx when a graph is asked for).
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from evo_kernel.errors import PopulationError
from evo_kernel.types import CaseKind, Environment, Evaluation, PipelineState, Rival, ScoredCandidate, TaskCard
from populations import lineage, statistics
from populations.candidate_cache import Library
from populations.checking import check_rows
from populations.connect import announced, connect_reader, fetch_dicts, fetch_one, interruptible, owner
from populations.external_tickets import HandedOut, fetch_ticket, open_tickets
from populations.rows import (
    fetch_baseline_faults,
    fetch_baselines,
    fetch_ceilings,
    fetch_environment,
    fetch_evaluation,
    fetch_parents,
    fetch_proposal,
)
from populations.search_state import PASSED_CODE, Leaderboard, Lineage, Replay, SearchState
from populations.statistics import (
    Best,
    CandidateView,
    CaseTime,
    CellView,
    ModelUse,
    OperatorUse,
    RunStatus,
    SessionView,
)

if TYPE_CHECKING:
    import networkx as nx

_Values = TypeVar("_Values")


class PopulationReader:
    """A read-only view of a population file; use it as a context manager. For one thread at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.connection = connect_reader(self.path)
        check_rows(self.connection, self.path)
        self._interruptible = interruptible(self.connection)
        self._replay = Replay(self.connection)

    def __enter__(self) -> PopulationReader:
        self._interruptible.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.closing(self.connection):
            self._interruptible.__exit__(kind, error, traceback)

    def close(self) -> None:
        self.connection.close()

    def changes(self) -> int:
        """Another number whenever the file has changed."""
        return fetch_one(self.connection, "PRAGMA data_version")

    # ---- overview -------------------------------------------------------------------------------------------------

    @property
    def task(self) -> TaskCard:
        return TaskCard.from_data(json.loads(fetch_one(self.connection, "SELECT card FROM tasks ORDER BY id LIMIT 1")))

    @property
    def task_identity(self) -> str:
        return fetch_one(self.connection, "SELECT identity FROM tasks ORDER BY id LIMIT 1")

    @property
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
        connection, writer = self.connection, owner(self.path)
        spent, state = statistics.totals(connection), self.state()
        open_attempts, abandoned, handed_out = statistics.unended_attempts(connection, live=writer is not None)
        return RunStatus(
            path=str(self.path),
            task=fetch_one(connection, "SELECT name FROM tasks ORDER BY id LIMIT 1"),
            task_identity=self.task_identity,
            environment=self.environment,
            sessions=fetch_one(connection, "SELECT COUNT(*) FROM runs"),
            attempts=spent.attempts,
            open_attempts=open_attempts,
            abandoned=abandoned,
            handed_out=handed_out,
            failures=spent.failures,
            candidates=len(state.lineage),
            pending=len(state.lineage.never_judged()),
            verdicts=self.board().verdicts(),
            evaluations=dict(spent.evaluations),
            gpu_s=spent.gpu_s,
            wall_s=statistics.wall_s(connection),
            dollars=spent.dollars,
            tokens=spent.tokens,
            best=self.best(),
            champion=self.champion(),
            times=self._times(),
            writer=writer,
            pipeline=pipeline(self.path),
            ceilings=self.ceilings(),
            baselines=self.baselines(),
            baseline_faults=self.baseline_faults(),
            models=self.models(),
            operators=self.operators(),
        )

    def models(self) -> tuple[ModelUse, ...]:
        """What was asked of language models, those asked most first."""
        return statistics.model_uses(self.connection)

    def operators(self) -> tuple[OperatorUse, ...]:
        """What came of each operator's attempts; planted kernels are nobody's."""
        return statistics.operator_uses(self.connection, self.environment_row)

    def strategies(self) -> list[dict[str, Any]]:
        """Each strategy by name: how often it was tried, passed, and made the best of all children's gains."""
        sql = (
            "SELECT strategy AS name, family, tried, passed, mean_log_gain, best_log_gain FROM strategy_credit"
            " WHERE environment_id = ?"
        )
        return fetch_dicts(self.connection, sql, (self.environment_row,))

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

    # ---- who stands where, in the environment shown -----------------------------------------------------------------

    def state(self) -> SearchState:
        """The search's own state, replayed up to now."""
        self.connection.execute("BEGIN")  # one moment for all tables
        try:
            self._replay.advance()
        finally:
            self.connection.execute("ROLLBACK")
        return self._replay.state

    def board(self) -> Leaderboard:
        """The standings; with a place for every candidate."""
        state = self.state()
        board = state.board(self._key)
        board.grow(len(state.lineage) + 1)
        return board

    @property
    def family(self) -> Lineage:
        """Who descends from whom, by number."""
        return self._replay.state.lineage

    def best(self) -> Best | None:
        """The fastest candidate that no confirmation refuted, as the search has it."""
        return self._best(self.board().best())

    def champion(self) -> Best | None:
        """The fastest confirmed candidate."""
        return self._best(self.board().champion())

    def leader(self) -> Best | None:
        """The champion; the best while nothing is confirmed."""
        return self._best(self.board().leader())

    def confirmation(self, candidate: int) -> Evaluation | None:
        """What settled whether a candidate may be a champion: its refutation, else its latest confirmation."""
        sql = (
            "SELECT id FROM evaluations WHERE candidate = ? AND environment = ? AND purpose = 'confirm'"
            " AND status != 'infra_error' ORDER BY status = 'passed', id DESC LIMIT 1"
        )
        number = fetch_one(self.connection, sql, (candidate, self.environment_row))
        return fetch_evaluation(self.connection, number) if number else None

    def leaders(self, count: int | None = None) -> list[int]:
        """Candidates that passed and were not refuted; the fastest first, at most `count`."""
        return self.board().leaders()[:count]

    def confirmed(self) -> list[int]:
        """Confirmed candidates; the fastest first."""
        board = self.board()
        return [candidate for candidate in board.leaders() if candidate in board.confirmed]

    def history(self) -> list[dict[str, Any]]:
        """How the best grew: a row for every score that beat all before it, with what had been spent by then."""
        return statistics.history(self.connection, self.environment_row)

    def cells(self) -> list[CellView]:
        """The archive, all islands together, the fastest cell first."""
        board = self.board()
        passed = Counter(cell for cell, code in zip(board.cell, board.status, strict=True) if code == PASSED_CODE)
        elites: dict[str, list[int]] = {}
        for archive in board.islands.archives:
            for name, cell in archive.cells.items():
                elites.setdefault(name, []).append(cell.elite.candidate)
        found = {name: min(several, key=lambda one: board.times[one]) for name, several in elites.items()}
        return [
            CellView(name, passed[board.cell_names.index(name)], elite, board.score(elite))
            for name, elite in sorted(found.items(), key=lambda item: board.times[item[1]])
        ]

    def latest(self, count: int) -> list[int]:
        """Candidates that were scored last, the latest first."""
        sql = (
            "SELECT candidate FROM evaluations WHERE environment = ? AND purpose = 'score' AND status != 'infra_error'"
            " ORDER BY id DESC LIMIT ?"
        )
        rows = self.connection.execute(sql, (self.environment_row, 4 * count))
        return list(dict.fromkeys(candidate for (candidate,) in rows))[:count]

    def last_at(self) -> float | None:
        """Unix time of the latest verdict."""
        return fetch_one(self.connection, "SELECT at FROM evaluations ORDER BY id DESC LIMIT 1")

    # ---- one candidate --------------------------------------------------------------------------------------------

    def candidate(self, number: int) -> CandidateView:
        connection = self.connection
        sql = "SELECT attempt, island, generation, parent, at FROM candidates WHERE id = ?"
        row = self._known(connection.execute(sql, (number,)).fetchone(), number)
        attempt, island, generation, parent, at = row
        ids = connection.execute("SELECT id FROM evaluations WHERE candidate = ? ORDER BY id", (number,)).fetchall()
        children = connection.execute("SELECT id FROM candidates WHERE parent = ? ORDER BY id", (number,)).fetchall()
        evaluations = tuple(fetch_evaluation(connection, evaluation) for (evaluation,) in ids)
        born, family = (number, attempt, island, generation, parent), tuple(child for (child,) in children)
        return CandidateView(*born, fetch_proposal(connection, number), evaluations, family, at, self._key)

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
        self._known(number if 0 < number <= self.last_candidate() else None, number)
        return Library(self.connection, self.state(), self._key).relative(number)

    # ---- the lineage ----------------------------------------------------------------------------------------------

    def nodes(self, numbers: Iterable[int] | None = None) -> list[dict[str, Any]]:
        """Candidates (all, if left out) with strategy and latest score, as plain data, oldest first."""
        return lineage.nodes(self.connection, numbers)

    def critical_path(self, candidate: int) -> list[lineage.PathStep]:
        return lineage.critical_path(self.connection, candidate, self.environment_row)

    def path_candidates(self, candidate: int) -> list[int]:
        """The candidate and its parents, oldest first."""
        return list(dict.fromkeys(step.candidate for step in self.critical_path(candidate)))

    def path_texts(self, path: Iterable[lineage.PathStep]) -> list[str]:
        """The source after each step, as it was scored: a root that was tuned later without its knobs."""
        steps = list(path)
        tuned_later = len(steps) > 1 and steps[1].tuning
        views = [self.candidate(step.candidate) for step in steps]
        return [
            (view.proposal.source if tuned_later and number == 0 else view.source).text
            for number, view in enumerate(views)
        ]

    def graph(self) -> nx.DiGraph:
        return lineage.graph(self.connection)

    def export_graph(self, path: Path) -> None:
        lineage.export(self.connection, path)

    # ---- within ---------------------------------------------------------------------------------------------------

    def _known(self, found: Any, number: int) -> Any:
        if found is None:
            raise PopulationError(
                f"{self.path} has no candidate {number}: they are numbered 1 to {self.last_candidate()}."
            )
        return found

    @property
    def _key(self) -> str:
        environment = self.environment
        return environment.key if environment else ""

    def _best(self, candidate: int) -> Best | None:
        if not candidate:
            return None
        told, score = self.confirmation(candidate), self.board().score(candidate)
        if told is None:
            return Best(candidate, score, confirmed=False)
        hidden = told.gain_over(Rival.FIRST, CaseKind.CONFIRM)
        ratio, there = (hidden.ratio, told.score) if hidden else (None, None)
        return Best(candidate, score, True, told.claimed, told.survived, ratio, there)

    def _times(self) -> dict[str, CaseTime]:
        """The leader's, by case."""
        leader = self.leader()
        evaluation = self.candidate(leader.candidate).evaluation if leader else None
        measured = evaluation.measurements if evaluation else ()
        return {m.case: CaseTime(m.median_us, m.floor_us, m.light_share) for m in measured}

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
