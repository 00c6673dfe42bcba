"""The population's SQLite file: one writer behind one lock, any number of readers.

Write-ahead log, synchronous=NORMAL, foreign keys on; every write is one short BEGIN IMMEDIATE transaction. What was
committed survives SIGKILL (the operating system holds it); the last moments before a power cut may be lost, never a
half-written transaction. Rows are inserted, never updated or deleted.

Thread-safe: `write` holds a re-entrant lock from BEGIN to COMMIT; `read` takes the same lock. Long reads go through
`reader()`, a read-only connection of their own.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from evo_kernel.errors import InfraError, PopulationError
from evo_kernel.lru_cache import Recent
from evo_kernel.types import Environment, Strategy
from populations.checking import check_rows, trust_rows
from populations.connect import OwnerLock, connect_reader, limited
from populations.migrations import migrate
from populations.rows import dumps
from populations.schema import check_schema

BUSY_S = 30.0
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
INTERNED = 4096  # strategies whose rowid is remembered


class Store:
    """An open population file, owned by this process until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._owner = OwnerLock(path)
        self._strategies: Recent[str, int] = Recent(INTERNED)
        self.held: dict[int, tuple[Any, ...]] = {}  # attempts that have left nothing yet, by id
        self._released: dict[int, tuple[Any, ...]] = {}  # in the transaction under way
        try:
            self.connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            limited(self.connection, path, self._prepare)
            check_rows(self.connection, path)
            self.connection.execute("PRAGMA foreign_keys=ON")  # after migrations, which may rebuild tables
        except sqlite3.DatabaseError as error:
            self._owner.release()
            raise PopulationError(
                f"{path} is not a population that can be opened ({error}). Name another file with --population, or "
                "move this one away."
            ) from error
        except BaseException:
            self._owner.release()
            raise

    def _prepare(self) -> None:
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=NORMAL")
        check_schema(self.connection, self.path)
        migrate(Database(self.connection))

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction; rolled back whole if its block raises. Raises InfraError where the file takes no more."""
        with self.lock:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException as error:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                self._strategies.clear()  # some of them may just have been rolled back
                self.held |= self._released
                self._released.clear()
                if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in _NO_ROOM:
                    raise InfraError(
                        f"{self.path} takes no more ({error}). Make room, then `evo-kernel resume {self.path}`: "
                        "what was written before is kept."
                    ) from error
                raise
            self._released.clear()

    def release(self, attempt: int | None) -> None:
        """Write the row, if it was held. Inside `write`."""
        if attempt is not None and (values := self.held.pop(attempt, None)) is not None:
            self._released[attempt] = values
            self.connection.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?)", (attempt, *values))

    def let_go(self, attempt: int) -> bool:
        """Forget a row that is held; False where it was written."""
        return self.held.pop(attempt, None) is not None

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.lock:
            return self.connection.execute(sql, parameters).fetchall()

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        with self.lock:
            return self.connection.execute(sql, parameters).fetchone()

    @contextlib.contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A read-only connection of its own: long reads do not hold up the search."""
        connection = connect_reader(self.path)
        try:
            yield connection
        finally:
            connection.close()

    def announce(self, state: Mapping[str, Any]) -> None:
        """What this process is doing, for other processes: beside the file, and gone with the process."""
        self._owner.announce(state)

    def intern(self, table: str, column: str, values: dict[str, Any]) -> int:
        """Rowid of the row whose unique `column` has this value, inserted if new. Inside `write`."""
        found = self.connection.execute(f"SELECT id FROM {table} WHERE {column} = ?", (values[column],)).fetchone()
        if found:
            return int(found[0])
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        cursor = self.connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def intern_environment(self, environment: Environment) -> int:
        values = {"key": environment.key, **asdict(environment), "fp_fusion": int(environment.fp_fusion)}
        return self.intern("environments", "key", values)

    def intern_strategy(self, strategy: Strategy | None) -> int | None:
        if strategy is None:
            return None
        # Unlike Strategy.key this holds the family too and cannot be ambiguous.
        key = dumps([strategy.name, strategy.family, strategy.region, strategy.parameters])
        values = {"key": key, "name": strategy.name, "family": strategy.family, "region": strategy.region}
        values["parameters"] = dumps(strategy.parameters)
        return self._strategies.find(key, lambda: self.intern("strategies", "key", values))

    def close(self) -> None:
        """Fold the write-ahead log into the file and let go of it."""
        with self.lock:
            with contextlib.suppress(sqlite3.OperationalError):  # a reader is at work: the log stays, nothing is lost
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.connection.close()
            trust_rows(self.path)
            self._owner.release()
