"""What agents leave behind in the file: conversations turn by turn, memories across attempts, notes with evidence.

A turn is durable before the next one is asked for, with what it cost: calls become rows of `calls` (unless whoever
makes them has written them already), evaluations and GPU seconds count from the turn. All methods are thread-safe.
"""

from __future__ import annotations

import re
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from evo_kernel.errors import PopulationError
from evo_kernel.types import Call
from evo_kernel.types.inflating import inflated
from evo_kernel.types.notes import Evidence, Note
from populations.rows import dumps, loads
from populations.store import Store
from populations.writing import write_calls

SEARCHED = 2000  # the latest notes that a query looks at
_WORD = re.compile(r"[a-z0-9_.]{2,}")


class AgentLog:
    """One population's: a TurnStore, and the workbench's Notebook."""

    keeps_calls = True

    def __init__(self, store: Store) -> None:
        self._store = store

    # ---- turns ----------------------------------------------------------------------------------------------------

    def append(
        self,
        attempt: int,
        kind: str,
        data: Mapping[str, Any],
        calls: Sequence[Call] = (),
        charged: Mapping[str, int] | None = None,
        gpu_s: float = 0.0,
    ) -> None:
        """The next turn of an attempt. `calls`, `charged`, `gpu_s`: what came on top since the turn before."""
        text = zlib.compress(dumps(data).encode(), 6)
        with self._store.write() as connection:
            self._store.release(attempt)
            sql = "SELECT IFNULL(MAX(position) + 1, 0), IFNULL(MAX(calls), 0) FROM turns WHERE attempt = ?"
            position, before = connection.execute(sql, (attempt,)).fetchone()
            so_far = before + len(calls)
            (written,) = connection.execute("SELECT COUNT(*) FROM calls WHERE attempt = ?", (attempt,)).fetchone()
            new = list(calls)[len(calls) - min(max(so_far - written, 0), len(calls)) :]
            write_calls(connection, attempt, new)
            values = (attempt, position, kind, text, so_far, dumps(dict(charged or {})), gpu_s, time.time())
            connection.execute("INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def turns(self, attempt: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """(kind, data) in their order, read one by one."""
        sql = "SELECT kind, data FROM turns WHERE attempt = ? AND position = ?"
        position = 0
        while (row := self._store.row(sql, (attempt, position))) is not None:
            try:
                data = loads(inflated(row[1]).decode())
            except ValueError as error:
                raise PopulationError(f"Turn {position} of attempt {attempt} cannot be read: {error}.") from None
            yield row[0], data
            position += 1

    # ---- memories -------------------------------------------------------------------------------------------------

    def remember(self, attempt: int, kind: str, data: Mapping[str, Any]) -> None:
        """One memory of a kind an attempt; a second one is passed over (an attempt that ended twice, after a kill)."""
        with self._store.write() as connection:
            self._store.release(attempt)
            connection.execute(
                "INSERT OR IGNORE INTO memories (attempt, kind, data, at) VALUES (?, ?, ?, ?)",
                (attempt, kind, dumps(data), time.time()),
            )

    def memories(self, limit: int) -> Sequence[tuple[int, str, dict[str, Any], float]]:
        """(attempt, kind, data, Unix time) of the latest, oldest first."""
        rows = self._store.rows("SELECT attempt, kind, data, at FROM memories ORDER BY id DESC LIMIT ?", (limit,))
        return [(attempt, kind, loads(data), at) for attempt, kind, data, at in reversed(rows)]

    # ---- notes ----------------------------------------------------------------------------------------------------

    def add(
        self,
        text: str,
        author: str,
        attempt: int | None,
        evidence: Sequence[Evidence],
        refutes: int | None = None,
    ) -> int:
        with self._store.write() as connection:
            self._store.release(attempt)
            cursor = connection.execute(
                "INSERT INTO notes (attempt, author, text, at, evidence, refutes) VALUES (?, ?, ?, ?, ?, ?)",
                (attempt, author, text, time.time(), dumps([asdict(one) for one in evidence]), refutes),
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def notes(self, limit: int, query: str = "") -> list[Note]:
        """The latest founded ones, newest first; with a query those that hold any of its words, most of them first.

        What refutes an older note is shown with that one.
        """
        wanted = set(_WORD.findall(query.lower()))
        found = self._notes("n.evidence IS NOT NULL AND n.refutes IS NULL", (), SEARCHED if wanted else limit)
        if not wanted:
            return found
        ranked = [(len(wanted & set(_WORD.findall(note.text.lower()))), note) for note in found]
        return [note for count, note in sorted(ranked, key=lambda pair: -pair[0]) if count][:limit]

    def note(self, number: int) -> Note | None:
        found = self._notes("n.id = ? AND n.evidence IS NOT NULL AND n.refutes IS NULL", (number,), 1)
        return found[0] if found else None

    def _notes(self, where: str, parameters: Sequence[Any], limit: int) -> list[Note]:
        sql = (
            "SELECT n.id, n.attempt, n.author, n.text, n.evidence,"
            " (SELECT r.text FROM notes r WHERE r.refutes = n.id ORDER BY r.id LIMIT 1)"
            f" FROM notes n WHERE {where} ORDER BY n.id DESC LIMIT ?"
        )
        return [
            Note(number, text, author, attempt, tuple(Evidence(**one) for one in cited), refuted or "")
            for number, attempt, author, text, evidence, refuted in self._store.rows(sql, (*parameters, limit))
            if (cited := loads(evidence))
        ]


def open_attempts(connection: sqlite3.Connection) -> list[tuple[int, int, int, list[int]]]:
    """(attempt, parent, island, inspirations) of conversations that ended in no candidate and no failure."""
    sql = (
        "SELECT a.id, a.parent, a.island, a.inspirations FROM attempts a WHERE a.parent IS NOT NULL"
        " AND a.id IN (SELECT attempt FROM turns WHERE position = 0)"
        " AND a.id NOT IN (SELECT attempt FROM tickets)"  # its holder goes on with it
        " AND NOT EXISTS (SELECT 1 FROM candidates c WHERE c.attempt = a.id)"
        " AND NOT EXISTS (SELECT 1 FROM failures f WHERE f.attempt = a.id) ORDER BY a.id"
    )
    return [(attempt, parent, island, loads(chosen)) for attempt, parent, island, chosen in connection.execute(sql)]
