"""Reading a population: opened while it is written, from a read-only folder, or when nobody has it; and asked."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from evo_kernel.errors import PopulationError

MIGRATIONS = 10
"""How many a file of this version has had."""


def connect_reader(path: Path) -> sqlite3.Connection:
    """A read-only connection that never blocks the writer, nor is blocked by it.

    Of a file that an earlier version made, it is a copy in memory, migrated: as the file stands now.
    """
    if not path.is_file():
        raise PopulationError(f"There is no population at {path}. `evo-kernel run TASK --population {path}` makes one.")
    name = path.resolve().as_uri()
    for mode in ("mode=ro", "immutable=1"):  # immutable: a read-only folder, where WAL has no place for its index
        connection = sqlite3.connect(f"{name}?{mode}", uri=True, timeout=30.0, check_same_thread=False)
        try:
            found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'evaluations'").fetchone()
        except sqlite3.OperationalError:
            connection.close()
            continue
        except sqlite3.DatabaseError as error:
            connection.close()
            raise PopulationError(f"{path} is not a population: {error}. Name another file.") from error
        if found is None:
            connection.close()
            raise PopulationError(f"{path} is a database, but not a population of evo-kernel. Name another file.")
        return connection if _is_current(connection) else _migrated(connection)
    raise PopulationError(f"{path} cannot be read. Check its permissions, and that of its folder.")


def fetch_one(connection: sqlite3.Connection, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
    """The first column of the first row; None without any."""
    row = connection.execute(sql, parameters).fetchone()
    return row[0] if row else None


def _is_current(connection: sqlite3.Connection) -> bool:
    """Or of a later version."""
    made = "SELECT COUNT(*) FROM _sqlite_migrations WHERE migration_set = 'populations'"
    return fetch_one(connection, made) >= MIGRATIONS


def _migrated(connection: sqlite3.Connection) -> sqlite3.Connection:
    from sqlite_utils import Database

    from populations.migrations import migrate

    copy = sqlite3.connect(":memory:", check_same_thread=False)
    with contextlib.closing(connection):
        connection.backup(copy)
    migrate(Database(copy))
    copy.execute("PRAGMA query_only=ON")
    return copy


def fetch_dicts(
    connection: sqlite3.Connection, sql: str, parameters: tuple[Any, ...] | dict[str, Any] = ()
) -> list[dict[str, Any]]:
    """Rows by the names of their columns."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    return [dict(row) for row in cursor.execute(sql, parameters)]
