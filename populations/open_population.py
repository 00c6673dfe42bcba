"""A population file that is open, with a session in it: all that is kept there beside the lineage."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

from evo_kernel.types import Environment, PipelineState, PlanVerdict, TaskCard
from populations.encoding import dumps, loads
from populations.plan_verdicts import fetch_findings, write_findings
from populations.row_decoders import BASELINE_FAULT, fetch_ceilings, fetch_verdicts
from populations.sessions import begin_session
from populations.settings import PopulationSettings
from populations.store import Store

CONFIRMATION = "confirmation"
"""The kind of event that tells whether one is due."""


class OpenPopulation:
    """Use it as a context manager. All methods are thread-safe, each one short transaction."""

    def __init__(
        self,
        store: Store,
        task: TaskCard,
        task_identity: str,
        environment: Environment,
        seed: int,
        settings: PopulationSettings,
        run: Mapping[str, Any],
    ) -> None:
        """Begins the session; raises PopulationError when the file holds another task."""
        self.path, self.task, self.environment, self.seed = store.path, task, environment, seed
        self.task_identity = task_identity
        self._store = store
        self._began = time.time()
        self._run = begin_session(
            store, task=task, task_identity=task_identity, environment=environment, seed=seed, settings=settings,
            run=run, at=self._began,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._store.close()

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
        found = self._store.row(sql, (self.environment.key,))
        return found[0] if found else None

    def announce(self, state: PipelineState) -> None:
        """Tell other processes what this one is doing: overwritten by the next word, gone with the process."""
        self._store.announce(asdict(state))

    def calls(self, limit: int = 10_000) -> Sequence[tuple[int, bool, str, float | None]]:
        """(attempt, whether no candidate came of it, model, dollars) of the latest calls, oldest first."""
        sql = (
            "SELECT attempt, NOT EXISTS (SELECT 1 FROM candidates c WHERE c.attempt = calls.attempt), model, dollars"
            " FROM calls ORDER BY attempt DESC, position DESC LIMIT ?"
        )
        return [(row[0], bool(row[1]), row[2], row[3]) for row in reversed(self._store.rows(sql, (limit,)))]

    # ---- what times are held against ------------------------------------------------------------------------------

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
            environment, at = self._store.intern_environment(self.environment), time.time()
            connection.executemany(
                "INSERT INTO baselines (environment, case_name, name, median_us, at) VALUES (?, ?, ?, ?, ?)",
                ((environment, case, name, median_us, at) for name, median_us in values.items()),
            )
            connection.executemany(
                "INSERT INTO events (run, kind, data, at) VALUES (?, ?, ?, ?)",
                (
                    (self._run, BASELINE_FAULT, dumps({"case": case, "name": name, "reason": reason}), at)
                    for name, reason in faults.items()
                ),
            )

    # ---- what is known about plans --------------------------------------------------------------------------------

    def verdicts(self, environment_key: str) -> Iterable[PlanVerdict]:
        """All that is known about plans in one environment, oldest first: a plan seen before costs nothing."""
        with self._store.reader() as connection:
            yield from fetch_verdicts(connection, environment_key)
            yield from fetch_findings(connection, environment_key)

    def found_out(self, verdicts: Sequence[PlanVerdict]) -> None:
        """What an agent's evaluation, which belongs to no candidate, found out about plans here."""
        if verdicts:
            with self._store.write() as connection:
                write_findings(connection, self._store.intern_environment(self.environment), verdicts)
