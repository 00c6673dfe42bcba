"""Checks that a population has the tables and indexes that the project makes, before anything in them is read.

Expressions in a stranger's schema (views, triggers, generated columns) could lie, or compute without end. Stored views
are for people with a client of SQLite: the project evaluates its own, whatever a file calls by their names.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from pathlib import Path

from evo_kernel.errors import PopulationError
from evo_kernel.types import escaped
from populations.views import view_definitions

MIGRATIONS = 10
"""How many a file of this version has had."""
SCHEMA = "b3a17057285963c143ec78073ca4720d175e5b2ce7622fdf3f0253219e695544"
"""`schema_digest` of a new file. Where it is equal, sqlite-utils, which is slow to import, is not needed."""
_STATISTICS = (  # of ANALYZE
    "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
)
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[^]]*\]|\w+|\S""")

Object = tuple[str, str, tuple[str, ...]]
"""Kind, name and the tokens of its SQL."""


def check_schema(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether a file has had all migrations; an empty one has had none.

    Raises PopulationError, which names the table, index, view or trigger that is missing or that no search made.
    """
    found = stored_objects(connection)
    if not found or schema_digest(found) == SCHEMA:
        return bool(found)
    from populations.migrations import made_by

    expected, applied = stored_objects(made_by(())), set[str]()
    of_migrations = {one for one in found if "_sqlite_migrations" in one[1]}
    if of_migrations == expected:
        names = connection.execute("SELECT name FROM _sqlite_migrations WHERE migration_set = 'populations'")
        applied = {name for (name,) in names}
        expected = stored_objects(made_by(applied))
    else:
        found = of_migrations
    for kind, name, _ in sorted(found - expected):
        said = f"it has {'an' if kind == 'index' else 'a'} {kind}, {escaped(name)!r}, which is not as a search of this"
        raise PopulationError(f"{path}: {said} version makes it. Take another copy of it.")
    for kind, name, _ in sorted(expected - found):
        raise PopulationError(f"{path}: its {kind} {name!r} is missing. Take another copy of it.")
    return len(applied) >= MIGRATIONS


def stored_objects(connection: sqlite3.Connection) -> set[Object]:
    """All but the statistics that ANALYZE keeps, and views of the known names, which nobody here evaluates."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    objects = {(kind, name, _tokens(sql)) for kind, name, sql in rows}
    left_out = {("table", sql.split("(")[0].split()[-1], _tokens(sql)) for sql in _STATISTICS}
    return {
        (kind, name, tokens)
        for kind, name, tokens in objects - left_out
        if name not in view_definitions()
        or tokens[:3] not in (("CREATE", "VIEW", name), ("CREATE", "VIEW", f'"{name}"'))
    }


def schema_digest(objects: set[Object]) -> str:
    return hashlib.sha256(repr(sorted(objects)).encode()).hexdigest()


def use_own_views(connection: sqlite3.Connection) -> None:
    """Hide the file's views: SQLite looks for a name among temporary objects first."""
    for name, definition in view_definitions().items():
        connection.execute(f"CREATE TEMP VIEW {name}{definition}")


def _tokens(sql: str) -> tuple[str, ...]:
    """Without white space, as every version of sqlite-utils writes: [name] is "name", FLOAT is REAL."""
    tokens = (f'"{token[1:-1]}"' if token[0] == "[" and len(token) > 1 else token for token in _TOKEN.findall(sql))
    return tuple("REAL" if token == "FLOAT" else token for token in tokens)
