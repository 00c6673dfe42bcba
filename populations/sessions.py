"""Sessions: each time that a population is opened for a search leaves one row, the boundary that resume is told by."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from evo_kernel.errors import PopulationError
from evo_kernel.types import Environment, TaskCard
from populations.encoding import dumps
from populations.settings import PopulationSettings
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


def measured_as_they_are(connection: sqlite3.Connection, environment: Environment) -> list[int]:
    """Candidates of no parent whose only verdict in an environment is that they passed, with their knobs as written."""
    rows = connection.execute(
        "SELECT c.id FROM candidates c JOIN evaluations e ON e.candidate = c.id AND e.purpose = 'score'"
        " JOIN environments n ON n.id = e.environment WHERE c.parent IS NULL AND n.key = ?"
        " GROUP BY c.id HAVING COUNT(*) = 1 AND MAX(e.status) = 'passed' AND MAX(e.knobs) = '[]' ORDER BY c.id",
        (environment.key,),
    )
    return [candidate for (candidate,) in rows]


def environment_before(connection: sqlite3.Connection, environment: Environment) -> str | None:
    """Key of the environment of the latest evaluation made anywhere but in this one."""
    row = connection.execute(
        "SELECT n.key FROM evaluations e JOIN environments n ON n.id = e.environment WHERE n.key != ?"
        " ORDER BY e.id DESC LIMIT 1",
        (environment.key,),
    ).fetchone()
    return row[0] if row else None
