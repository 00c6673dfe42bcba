"""Reading a population: opened while it is written, from a read-only folder, or when nobody has it; and asked."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from evo_kernel.errors import PopulationError


def connect_reader(path: Path) -> sqlite3.Connection:
    """A read-only connection that never blocks the writer, nor is blocked by it."""
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
        return connection
    raise PopulationError(f"{path} cannot be read. Check its permissions, and that of its folder.")


def fetch_one(connection: sqlite3.Connection, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
    """The first column of the first row; None without any."""
    row = connection.execute(sql, parameters).fetchone()
    return row[0] if row else None


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """False in an old file that is only read: it has not been migrated."""
    return fetch_one(connection, "SELECT 1 FROM sqlite_master WHERE name = ?", (name,)) is not None


def fetch_dicts(connection: sqlite3.Connection, sql: str, parameters: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
    """Rows by the names of their columns."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    return [dict(row) for row in cursor.execute(sql, parameters)]
