"""The writer's lock (one process at a time), and read-only connections to a population, while it is written or not."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from evo_kernel.errors import PopulationError, PopulationLocked
from populations.schema import check_schema, use_own_views

T = TypeVar("T")
LEAST_S, LEAST_BYTES_PER_S = 60.0, 1_000_000.0  # what checking a file may take
STEPS = 1_000_000  # of SQLite's virtual machine between looks for a signal: some 10 ms
_EVALUATIONS = "SELECT 1 FROM sqlite_master WHERE name = 'evaluations'"
SLOT = 4096  # bytes in the side file: the first for who holds the lock, the second for what it is doing


class OwnerLock:
    """An advisory lock on `FILE.lock`, released by the operating system when its process ends, however it ends.

    The side file also says who holds it, so that a refusal can name the process. Forked children let go of it at
    once: otherwise an orphan would keep the file locked after its parent was killed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        self._descriptor: int | None = None
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _locked(descriptor):
            pid, host = _read_owner(descriptor)
            os.close(descriptor)
            raise PopulationLocked(str(path), pid, host)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        self._descriptor = descriptor
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: (lock := this()) and lock.release())

    def announce(self, state: Mapping[str, Any]) -> None:
        """Leave word of what this process is doing, for `announced`. Nothing comes of a disk that is full."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, json.dumps(state).encode()[:SLOT].ljust(SLOT, b"\0"), SLOT)

    def release(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)  # closing releases; the side file stays, so nobody can lock a deleted one
            self._descriptor = None


def owner(path: Path) -> tuple[int, str] | None:
    """(pid, host) of the live process that writes this population; None when nobody does."""
    side = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(side, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_owner(descriptor)
    finally:
        os.close(descriptor)
    return None


def announced(path: Path) -> dict[str, Any] | None:
    """What the live process that writes this population said last; None where there is none, or it said nothing."""
    if owner(path) is None:
        return None
    try:
        with open(path.with_name(path.name + ".lock"), "rb") as side:
            side.seek(SLOT)
            return dict(json.loads(side.read(SLOT).rstrip(b"\0")))
    except (OSError, ValueError, TypeError):  # nothing said yet, or caught while it was being said
        return None


def _locked(descriptor: int) -> bool:
    """Whether the lock is ours now. Who only asks whose it is (`owner`) holds it for an instant: tried again."""
    for pause_s in (0.0, 0.01, 0.03):
        time.sleep(pause_s)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def _read_owner(descriptor: int) -> tuple[int, str]:
    try:
        found = json.loads(os.pread(descriptor, SLOT, 0).rstrip(b"\0"))
        return int(found["pid"]), str(found["host"])
    except (ValueError, KeyError, TypeError):  # caught between its lock and its writing the name
        return 0, "unknown"


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
            found = limited(connection, path, partial(fetch_one, connection, _EVALUATIONS))
        except sqlite3.OperationalError:
            connection.close()
            continue
        except PopulationError:
            connection.close()
            raise
        except sqlite3.DatabaseError as error:
            connection.close()
            raise PopulationError(f"{path} is not a population: {error}. Name another file.") from error
        if found is None:
            connection.close()
            raise PopulationError(f"{path} is a database, but not a population of evo-kernel. Name another file.")
        try:
            if not limited(connection, path, partial(check_schema, connection, path)):
                connection = _migrated_copy(connection, path)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise PopulationError(f"{path} is no whole population ({error}). Take another copy of it.") from error
        except BaseException:
            connection.close()
            raise
        use_own_views(connection)
        connection.execute("PRAGMA query_only=ON")
        return connection
    raise PopulationError(f"{path} cannot be read. Check its permissions, and that of its folder.")


@contextlib.contextmanager
def interruptible(connection: sqlite3.Connection) -> Iterator[None]:
    """A signal whose handler raises ends the block while SQLite computes, which looks at no signal by itself.

    A generator, because the handler runs at its `yield`, where what it raises can be caught: sqlite3 would drop it.
    """
    raised: list[BaseException] = []

    def steps() -> Iterator[int]:
        try:
            while True:
                yield 0
        except GeneratorExit:
            return
        except BaseException as error:  # noqa: BLE001  raised again below
            raised.append(error)
        while True:
            yield 1

    step = steps()
    next(step)
    connection.set_progress_handler(step.__next__, STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)
        if raised:
            raise raised[0] from None


def limited(connection: sqlite3.Connection, path: Path, work: Callable[[], T], limit_s: float | None = None) -> T:
    """What a stranger's file may make endless, within a limit, while signals reach who waits: SQLite looks at none, and
    would drop what their handlers raise in our functions."""
    if limit_s is None:
        limit_s = LEAST_S + path.stat().st_size / LEAST_BYTES_PER_S
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return future.result(limit_s)
        except TimeoutError:
            raise PopulationError(
                f"{path}: it cannot be checked within {limit_s:.0f} s. Take another copy of it."
            ) from None
        finally:
            while not future.done():  # again: the work may have been between two statements
                connection.interrupt()
                wait((future,), 0.01)


def _migrated_copy(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    from sqlite_utils import Database

    from populations.migrations import migrate

    copy = sqlite3.connect(":memory:", check_same_thread=False)
    with contextlib.closing(connection):
        connection.backup(copy)
    limited(copy, path, partial(migrate, Database(copy)))
    return copy


def fetch_one(connection: sqlite3.Connection, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
    """The first column of the first row; None without any."""
    row = connection.execute(sql, parameters).fetchone()
    return row[0] if row else None


def fetch_dicts(
    connection: sqlite3.Connection, sql: str, parameters: tuple[Any, ...] | dict[str, Any] = ()
) -> list[dict[str, Any]]:
    """Rows by the names of their columns."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    return [dict(row) for row in cursor.execute(sql, parameters)]
