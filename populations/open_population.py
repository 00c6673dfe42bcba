"""An open population: its session, what is known in it, and what is kept beside the lineage.

Each time that a population is opened for a search leaves one row, the session's.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from evo_kernel.errors import PopulationError
from evo_kernel.types import Brief, Credit, Environment, PipelineState, PlanVerdict, Recorded, ScoredCandidate, TaskCard
from evo_kernel.types.notes import Version, VersionOrder
from populations import statistics
from populations.archive import PopulationSettings
from populations.candidate_cache import Library
from populations.connect import fetch_one
from populations.rows import (
    BASELINE_FAULT,
    dumps,
    fetch_ceilings,
    fetch_proposal,
    fetch_verdicts,
    loads,
    write_findings,
)
from populations.search_state import replay
from populations.store import Store


@dataclass(frozen=True)
class SessionStart:
    """What a session begins with. `run`: the validated run configuration as plain data."""

    task: TaskCard
    task_identity: str
    environment: Environment
    seed: int
    settings: PopulationSettings = field(default_factory=PopulationSettings)
    run: Mapping[str, Any] = field(default_factory=dict)


def begin_session(store: Store, start: SessionStart, at: float) -> int:
    """Write the session's row and return its id; refuses a file that holds another task."""
    connection, task, task_identity = store.connection, start.task, start.task_identity
    with store.write():
        held = connection.execute("SELECT identity, name FROM tasks ORDER BY id LIMIT 1").fetchone()
        if held is not None and held[0] != task_identity:
            raise PopulationError(
                f"{store.path} holds a search on task {held[1]} ({held[0][:12]}), not on {task.name} "
                f"({task_identity[:12]}); the task's file may have changed since. Name another file with "
                "--population, or bring kernels over with --start-from."
            )
        values = {"identity": task_identity, "name": task.name, "card": dumps(asdict(task))}
        row = (
            store.intern("tasks", "identity", values), store.intern_environment(start.environment), start.seed,
            dumps(start.settings.as_data()), dumps(dict(start.run)), os.getpid(), socket.gethostname(),
            last_id(connection, "evaluations"), last_id(connection, "attempts"), at,
        )  # fmt: skip
        sql = (
            "INSERT INTO runs (task, environment, seed, settings, config, pid, host, after_evaluation, after_attempt,"
            " at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        number = connection.execute(sql, row).lastrowid
    assert number is not None
    return number


def last_id(connection: sqlite3.Connection, table: str) -> int:
    """The largest id of a table; 0 when it is empty."""
    return connection.execute(f"SELECT IFNULL(MAX(id), 0) FROM {table}").fetchone()[0]


CONFIRMATION = "confirmation"
"""The kind of event that tells whether one is due."""


class OpenPopulation:
    """Use it as a context manager. All methods are thread-safe, each at most one short transaction."""

    def __init__(self, store: Store, start: SessionStart) -> None:
        """Begins the session; raises PopulationError when the file holds another task."""
        self.path, self.task, self.environment, self.seed = store.path, start.task, start.environment, start.seed
        self.task_identity = start.task_identity
        self._store = store
        # What earlier sessions left behind is read before this one leaves its mark.
        self.earlier_wall_s = statistics.wall_s(store.connection)
        self._state = replay(store.connection)
        sql = (
            "SELECT n.key FROM evaluations e JOIN environments n ON n.id = e.environment WHERE n.key != ?"
            " ORDER BY e.id DESC LIMIT 1"
        )
        self._previous_environment = fetch_one(store.connection, sql, (start.environment.key,))
        self._began = time.time()
        self._run = begin_session(store, start, self._began)
        self._state.configure(start.settings)
        self._board = self._state.board(start.environment.key)
        self._library = Library(store.connection, self._state, start.environment.key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._store.close()

    # ---- candidates -----------------------------------------------------------------------------------------------

    def pending(self) -> Sequence[Recorded]:
        """What to judge before anything new, oldest first.

        In an environment that has judged nothing yet: the elites and champions of the one before, because scores do
        not carry over; then candidates that were never judged at all.
        """
        with self._store.lock:
            previous = self._state.boards.get(self._previous_environment or "")
            again: set[int] = set()
            if previous is not None and previous is not self._board:
                known = self._board.status
                again = previous.islands.elites() | previous.confirmed - previous.refuted
                again = {c for c in again if c >= len(known) or not known[c]}
            never = [c for c in self._state.lineage.never_judged() if c not in again]
            return [self._recorded(candidate) for candidate in [*sorted(again), *never]]

    def untuned(self) -> Sequence[Recorded]:
        """Roots that were measured once, as they are: a session may have ended before it tuned them."""
        sql = (
            "SELECT c.id FROM candidates c JOIN evaluations e ON e.candidate = c.id AND e.purpose = 'score'"
            " JOIN environments n ON n.id = e.environment WHERE c.parent IS NULL AND n.key = ?"
            " GROUP BY c.id HAVING COUNT(*) = 1 AND MAX(e.status) = 'passed' AND MAX(e.knobs) = '[]' ORDER BY c.id"
        )
        with self._store.lock:
            return [self._recorded(candidate) for (candidate,) in self._store.rows(sql, (self.environment.key,))]

    def origins(self) -> set[str]:
        """Where roots come from, as `plant` was told."""
        rows = self._store.rows("SELECT DISTINCT operator FROM candidates WHERE parent IS NULL")
        return {operator for (operator,) in rows}

    def elites(self) -> Sequence[Recorded]:
        """The fastest candidate of every cell, fastest first."""
        with self._store.lock:
            times = self._board.times
            found = sorted((times[candidate], candidate) for candidate in self._board.islands.elites())
            return [self._recorded(candidate) for _, candidate in found]

    def unsettled(self) -> Recorded | None:
        """A candidate that should be measured again: noise leaves open whether it leads its cell."""
        with self._store.lock:
            found = self._board.islands.unsettled()
            return self._recorded(found.candidate) if found else None

    def recorded(self, candidate: int) -> Recorded:
        """The ticket of a candidate that is already durable: how a champion is told its confirmation."""
        with self._store.lock:
            self._check(candidate)
            return self._recorded(candidate)

    def relative(self, candidate: int) -> ScoredCandidate:
        """Any candidate, with its evaluation in this environment."""
        with self._store.lock:
            self._check(candidate)
            return self._library.relative(candidate)

    def best(self) -> ScoredCandidate | None:
        """The fastest candidate in this environment that no confirmation refuted."""
        return self._scored(self._board.best)

    def champion(self) -> ScoredCandidate | None:
        """The fastest confirmed candidate in this environment."""
        return self._scored(self._board.champion)

    def leader(self) -> ScoredCandidate | None:
        """The champion; the best while nothing is confirmed."""
        return self._scored(self._board.leader)

    def latest(self, count: int) -> Sequence[ScoredCandidate]:
        """The youngest candidates, youngest first."""
        with self._store.lock:
            last = len(self._state.lineage)
            return [self._library.relative(candidate) for candidate in range(last, max(0, last - count), -1)]

    def versions(self, limit: int, order: VersionOrder = "newest", of: int | None = None) -> Sequence[Version]:
        """Judged candidates with their standing here; `path`: from the root to `of` (the best), oldest first."""
        with self._store.lock:
            if of is not None:
                self._check(of)
            return self._library.versions(limit, order, of)

    # ---- the session ----------------------------------------------------------------------------------------------

    def credits(self) -> Sequence[Credit]:
        """The latest CREDITS_KEPT credits, in the order of `tell`."""
        with self._store.lock:
            return self._library.credits(self._state.earned)

    def digest(self) -> str:
        """sha256 of the search state: a replay of the file has the same."""
        with self._store.lock:
            return self._state.digest()

    def event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Something a reader of the run may want to know: a confirmation, a new champion, a budget spent."""
        with self._store.write() as connection:
            connection.execute(
                "INSERT INTO events (run, kind, data, at) VALUES (?, ?, ?, ?)",
                (self._run, kind, dumps(dict(data)), time.time()),
            )

    def note_confirmation(self, due: bool) -> None:
        """A confirmation is due from now on; or it was made."""
        self.event(CONFIRMATION, {"due": due})

    def confirmation_due(self) -> bool:
        """Whether a session ended before it could confirm what it had found."""
        latest = self._store.row("SELECT data FROM events WHERE kind = ? ORDER BY id DESC LIMIT 1", (CONFIRMATION,))
        return bool(latest and loads(latest[0])["due"])

    def confirmation_s(self) -> float | None:
        """What a confirmation took at most in this environment; None where there was none."""
        sql = (
            "SELECT MAX(e.wall_s) FROM evaluations e JOIN environments n ON n.id = e.environment"
            " WHERE e.purpose = 'confirm' AND n.key = ?"
        )
        (found,) = self._store.row(sql, (self.environment.key,)) or (None,)
        return found

    def announce(self, state: PipelineState) -> None:
        """Tell other processes what this one is doing: overwritten by the next word, gone with the process."""
        self._store.announce(asdict(state))

    # ---- what times are held against, and what is known about plans ------------------------------------------------

    def ceilings(self, environment_key: str) -> dict[str, float]:
        """What was stored of an environment's machine by `store_ceilings`; empty where nothing was."""
        with self._store.lock:
            return fetch_ceilings(self._store.connection, environment_key)

    def store_ceilings(self, values: Mapping[str, float]) -> None:
        """What this environment's machine reaches at most; names end in their unit, e.g. `copy_bytes/s`."""
        with self._store.write() as connection:
            environment, at = self._store.intern_environment(self.environment), time.time()
            connection.executemany(
                "INSERT INTO ceilings (environment, name, value, unit, at) VALUES (?, ?, ?, ?, ?)",
                ((environment, name, value, name.rsplit("_", 1)[-1], at) for name, value in values.items()),
            )

    def store_baselines(self, case: str, values: Mapping[str, float], faults: Mapping[str, str]) -> None:
        """What a case is held against in this environment, in µs by name, and why others have no time."""
        with self._store.write() as connection:
            environment = self._store.intern_environment(self.environment)
            connection.executemany(
                "INSERT INTO baselines (environment, case_name, name, median_us, at) VALUES (?, ?, ?, ?, ?)",
                ((environment, case, name, median_us, time.time()) for name, median_us in values.items()),
            )
        for name, reason in faults.items():
            self.event(BASELINE_FAULT, {"case": case, "name": name, "reason": reason})

    def verdicts(self, environment_key: str) -> Iterable[PlanVerdict]:
        """All that is known about plans in one environment, oldest first: a plan seen before costs nothing."""
        with self._store.reader() as connection:
            yield from fetch_verdicts(connection, environment_key)

    def found_out(self, verdicts: Sequence[PlanVerdict]) -> None:
        """What an agent's evaluation, which belongs to no candidate, found out about plans here."""
        if verdicts:
            with self._store.write() as connection:
                write_findings(connection, self._store.intern_environment(self.environment), verdicts)

    # ---- tickets; the population's lock is held --------------------------------------------------------------------

    def _brief(self, attempt: int, parent: int, island: int, chosen: Sequence[int], seed: int) -> Brief:
        library = self._library
        inspirations = tuple(map(library.relative, chosen))
        drawing = (seed, attempt, 1)  # the last number keeps the operator's draws apart from the selection's
        return Brief(
            attempt, self.task, library.relative(parent), inspirations, library.tried(parent), island, drawing,
            self.environment,
        )  # fmt: skip

    def _root(self, attempt: int, candidate: int, seed: int) -> Brief:
        """A planted seed's ticket: it stands as its own parent, one generation before the first."""
        itself = ScoredCandidate(candidate, self._library.proposed_source(candidate), -1, 0, None)
        return Brief(attempt, self.task, itself, (), (), 0, (seed, attempt, 1), self.environment)

    def _recorded(self, candidate: int) -> Recorded:
        attempt = self._state.lineage.attempt[candidate]
        return Recorded(candidate, self._opened(attempt, candidate), fetch_proposal(self._store.connection, candidate))

    def _opened(self, attempt: int, root: int = 0) -> Brief:
        """An attempt's ticket, rebuilt from the file (what was tried since is in it too); `root`: the candidate that
        was planted with it, if it was a plant."""
        sql = "SELECT a.parent, a.island, a.inspirations, r.seed FROM attempts a JOIN runs r ON r.id = a.run"
        row = self._store.connection.execute(f"{sql} WHERE a.id = ?", (attempt,)).fetchone()
        parent, island, chosen, seed = row
        if parent is None:
            return self._root(attempt, root, seed)
        return self._brief(attempt, parent, island, loads(chosen), seed)

    def _scored(self, find: Callable[[], int]) -> ScoredCandidate | None:
        with self._store.lock:
            return self._library.relative(candidate) if (candidate := find()) else None

    def _check(self, candidate: int) -> None:
        last = len(self._state.lineage)
        if not 0 < candidate <= last:
            raise PopulationError(f"{self.path} has no candidate {candidate}: they are numbered 1 to {last}.")
