"""A population edited by hand ends in a sentence that names the file, the table and the row."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from evo_kernel.errors import PopulationError
from evo_kernel.types import CaseKind, PairedComparison, Purpose, Rival, Status
from populations.checking import check_rows
from populations.connect import connect_reader
from populations.population import open_population
from populations.reading import PopulationReader
from populations.rows import digest
from tests.populations.samples import CARD, MODELED, TASK, passed, search

ROOT = Path(__file__).resolve().parents[2]
EDITS = {
    "a text for a number": "evaluations SET wall_s = 'soon'",
    "a number beyond all": "evaluations SET gpu_s = 9e999",
    "seconds given back": "evaluations SET gpu_s = -5",
    "no number that C holds": "candidates SET generation = 1 << 40",
    "a score that its times contradict": "evaluations SET score = score * 2",
    "a standing that its times contradict": "evaluations SET log_us = log_us - 1",
    "a time that its score contradicts": "measurements SET median_us = median_us / 2 WHERE position = 0",
    "a time of nothing": "measurements SET median_us = 0",
    "a baseline that its score contradicts": "measurements SET baselines_us = '{\"eager\":1000.0}'",
    "a baseline below zero": "measurements SET baselines_us = '{\"eager\":-1.0}'",
    "no times": "evaluations SET measured = 0",
    "times of others": "evaluations SET measured = 9",
    "an unknown status": "evaluations SET status = 'great'",
    "a passed failure": "evaluations SET status = 'wrong'",
    "an unknown purpose": "evaluations SET purpose = 'fun'",
    "knobs that are none": "evaluations SET knobs = '[[\"BLOCK\"]]'",
    "torn JSON": "evaluations SET checks = '[[\"large\",'",
    "evaluations given back": "evaluations SET charged = '{\"score\":-100}'",
    "more evaluations than anybody makes": f"evaluations SET charged = '{{\"score\":{2**62}}}'",
    "a parent to come": "candidates SET parent = id + 1 WHERE id = 2",
    "its own parent": "candidates SET parent = id WHERE id = 2",
    "a source that is not there": "candidates SET source = 99999",
    "a gap": "candidates SET id = 9999 WHERE id = (SELECT MAX(id) FROM candidates)",
    "another source": "sources SET text = text || ' '",
    "no text": "sources SET language = x'ff'",
    "a text that is none": "candidates SET operator = CAST(x'ff' AS TEXT)",
    "another judge": "environments SET judge = 99",
    "features": "features SET data = '{}'",
    "a verdict": "verdicts SET status = 'fine'",
    "a verdict's times": "verdicts SET measurement = 77",
    "settings": 'runs SET settings = \'{"islands":"many"}\'',
    "a configuration": "runs SET config = '[]'",
    "a session": "runs SET after_evaluation = 4",
    "a card": "tasks SET card = '{\"name\":1}'",
    "parameters": "strategies SET parameters = '[1]'",
    "inspirations": "attempts SET inspirations = '[99999]'",
    "an offer": "decisions SET offered = '[99999]'",
    "a choice": "decisions SET chosen = 99",
    "half a character": 'events SET data = \'{"a":"\\ud800"}\'',
    "half a character of a kernel": "features SET (data, digest) = (SELECT e, hash(e) FROM (SELECT replace(data, "
    "'\"plain\"', '\"\\ud800\"') e))",
    "an event": "events SET data = '[]'",
    "a rival": "comparisons SET against = 'nobody'",
    "a ratio": "comparisons SET ratio = 0.0",
    "a date": "candidates SET at = 1e30",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checking") / "sound.db"
    rng = random.Random(5)
    with open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1) as population:
        search(population, 12, rng)
        ticket = population.recorded(population.best().candidate)
        pairs = (PairedComparison("large", CaseKind.SEARCH, Rival.FIRST, "ab" * 32, 1.7, 1.6, 1.8, 40, "faster", 1.9),)
        told = replace(passed(ticket.proposal.source, rng), purpose=Purpose.CONFIRM, comparisons=pairs)
        population.tell(ticket, told)
        population.tell(ticket, replace(told, status=Status.REFUTED, reason="not faster", score=None))
        population.note_confirmation(True)
    return path


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_row_edited_by_hand_is_named(sound, tmp_path, edit):
    path = tmp_path / "edited.db"
    shutil.copy(sound, path)
    connection = sqlite3.connect(path)
    connection.create_function("hash", 1, digest)
    assert connection.execute(f"UPDATE {edit}").rowcount > 0
    connection.commit()
    connection.close()
    table = edit.split()[0]
    named = f"^{re.escape(str(path))}: row [0-9]+ of ({table}|evaluations|findings): "
    with pytest.raises(PopulationError, match=named):
        PopulationReader(path)
    with pytest.raises(PopulationError, match=named):
        open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1)


FORGED = "CREATE VIEW {0} AS SELECT * FROM (SELECT 1 AS id)"
SCHEMAS = {
    "a trigger": (
        "CREATE TRIGGER faster AFTER INSERT ON measurements BEGIN UPDATE measurements SET median_us = 1.0; END",
        "it has a trigger, 'faster',",
    ),
    "a column": ("ALTER TABLE notes ADD COLUMN mood", "it has a table, 'notes',"),
    "a computed column": ("ALTER TABLE notes ADD COLUMN mood TEXT AS (author || text)", "it has a table, 'notes',"),
    "a column of another kind": (
        "DROP TABLE ceilings; CREATE TABLE ceilings (id INTEGER PRIMARY KEY, environment INTEGER, name TEXT, value REAL"
        ", unit TEXT AS ('x'), at REAL)",
        "it has a table, 'ceilings',",
    ),
    "a view for a table": (f"DROP TABLE ceilings; {FORGED.format('ceilings')}", "it has a view, 'ceilings',"),
    "a view for the migrations": (
        f"DROP TABLE _sqlite_migrations; {FORGED.format('_sqlite_migrations')}",
        "it has a view, '_sqlite_migrations',",
    ),
    "another view": (FORGED.format('"a\x1bb"'), r"it has a view, 'a\\\\x1bb',"),
    "a table for a view": ("DROP VIEW ledger; CREATE TABLE ledger (session, what, of)", "it has a table, 'ledger',"),
    "a table of a module": (
        "DROP TABLE ceilings; CREATE VIRTUAL TABLE ceilings USING fts5(environment, name, value, unit, at)",
        "it has a table, 'ceilings',",
    ),
    "an index": ("CREATE INDEX slow ON notes (author GLOB text)", "it has an index, 'slow',"),
    "no table": ("DROP TABLE ceilings", "its table 'ceilings' is missing"),
    "no index": ("DROP INDEX idx_verdicts_plan", "its index 'idx_verdicts_plan' is missing"),
    "an older file's view for a table": (
        "DELETE FROM _sqlite_migrations WHERE name = '0009_assembler'; ALTER TABLE environments DROP COLUMN assembler;"
        f" DROP TABLE ceilings; {FORGED.format('ceilings')}",
        "it has a view, 'ceilings',",
    ),
    "an older file's computed column": (
        "DELETE FROM _sqlite_migrations WHERE name = '0009_assembler'; ALTER TABLE environments DROP COLUMN assembler;"
        " ALTER TABLE environments ADD COLUMN assembler TEXT AS (key || key)",
        "it has a table, 'environments',",
    ),
}


@pytest.mark.parametrize(("script", "says"), SCHEMAS.values(), ids=SCHEMAS)
def test_what_no_search_has_beside_rows_is_named(sound, tmp_path, script, says):
    path = tmp_path / "edited.db"
    shutil.copy(sound, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    named = f"^{re.escape(str(path))}: {says}"
    with pytest.raises(PopulationError, match=named):
        PopulationReader(path)
    with pytest.raises(PopulationError, match=named):
        open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1)


def test_views_of_the_file_are_never_evaluated(sound, tmp_path):
    """Who reads has views of its own; who writes makes those of the file anew."""
    path = tmp_path / "forged.db"
    shutil.copy(sound, path)
    views = "SELECT name, sql FROM sqlite_master WHERE type = 'view'"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        own = dict(connection.execute(views).fetchall())
        for name in own:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            connection.execute(f"DROP VIEW {name}")
            connection.execute(f"CREATE VIEW {name} AS SELECT {', '.join(f'1 AS {column}' for column in columns)}")
    with PopulationReader(sound) as reader, PopulationReader(path) as forged:
        true = replace(reader.status(), path=str(path))
        assert (forged.status(), forged.history(), forged.strategies()) == (true, reader.history(), reader.strategies())
    open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert dict(connection.execute(views).fetchall()) == own
        spent = connection.execute("SELECT * FROM ledger").fetchall()
    with contextlib.closing(sqlite3.connect(sound)) as connection:
        assert len(spent) > 1 and spent == connection.execute("SELECT * FROM ledger").fetchall()


def test_a_file_written_over_is_checked_again(sound, tmp_path):
    path = tmp_path / "replaced.db"
    shutil.copy(sound, path)
    with PopulationReader(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE evaluations SET score = score * 2")
        connection.commit()
    with pytest.raises(PopulationError, match="of evaluations"):
        PopulationReader(path)


@pytest.fixture(scope="module")
def slow(sound, tmp_path_factory):
    """Sound in its columns; its rules take minutes: sessions times evaluations."""
    path = tmp_path_factory.mktemp("slow") / "slow.db"
    shutil.copy(sound, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for table in ("runs", "evaluations"):
            columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "id")
            numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 40000)"
            one = f"SELECT {columns} FROM n, (SELECT * FROM {table} ORDER BY id LIMIT 1)"
            connection.execute(f"{numbers} INSERT INTO {table} ({columns}) {one}")
        connection.execute("UPDATE evaluations SET run = (SELECT MAX(id) FROM runs)")
        connection.commit()
    return path


@pytest.fixture(scope="module")
def endless(sound, tmp_path_factory):
    """Its schema names one automatic index 300^8 times: each cell of a page leads to the next page, see
    sqlite.org/fileformat2.html, sections 1.6 and 2.1."""
    path = tmp_path_factory.mktemp("endless") / "endless.db"
    shutil.copy(sound, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        name, table, root = connection.execute(
            "SELECT name, tbl_name, rootpage FROM sqlite_master WHERE sql IS NULL"
        ).fetchone()
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack_from(">H", data, 16)
    pages = len(data) // size

    def page(kind, cells, right, at=0):
        made, end = bytearray(size), size
        head = struct.pack(">BHHHB", kind, 0, len(cells), size - sum(map(len, cells)), 0) + right
        for cell in cells:
            end -= len(cell)
            made[end : end + len(cell)] = cell
            head += struct.pack(">H", end)
        made[at : at + len(head)] = head
        return made

    def leading(to, right, at=0):
        return page(5, [struct.pack(">IB", to, n % 127 + 1) for n in range(300)], struct.pack(">I", right), at)

    row = [b"index", name.encode(), table.encode()]
    record = bytes([6, *(2 * len(text) + 13 for text in row), 1, 0]) + b"".join(row) + bytes([root])
    first, count, content = bytearray(size), *struct.unpack_from(">HH", data, 103)
    first[: 12 + 2 * count], first[content:] = data[100 : 112 + 2 * count], data[content:size]
    levels = [leading(pages + 2 + n, pages + 2 + n) for n in range(1, 9)]
    data[100:size] = leading(pages + 2, pages + 1, 100)[100:]
    data[28:32] = struct.pack(">I", pages + 10)
    path.write_bytes(bytes(data) + b"".join([first, *levels, page(13, [bytes([len(record), 1]) + record], b"")]))
    return path


def test_checking_ends(slow):
    with contextlib.closing(connect_reader(slow)) as connection:
        with pytest.raises(PopulationError, match=r"slow\.db: it cannot be checked within 1 s"):
            check_rows(connection, slow, limit_s=1.0)
        assert connection.execute("SELECT COUNT(*) FROM tasks").fetchone() == (1,)


ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT COUNT(*) FROM r"
READS = f"""with PopulationReader({{path!r}}) as reader:
    print("now", flush=True)
    reader.connection.execute("{ENDLESS}").fetchone()"""
CHECKS = """print("now", flush=True)
PopulationReader({path!r})"""
OPENS = """print("now", flush=True)
from pathlib import Path
from populations.store import Store
Store(Path({path!r}))"""


@pytest.mark.parametrize(
    ("program", "file"), [(READS, "sound"), (CHECKS, "slow"), (CHECKS, "endless"), (OPENS, "endless")]
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_who_reads(request, program, file, number):
    program = f"""import signal
from populations.reading import PopulationReader
signal.signal(signal.SIGTERM, signal.default_int_handler)
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
{textwrap.indent(program.format(path=str(request.getfixturevalue(file))), "    ")}
except KeyboardInterrupt:
    print("interrupted")
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "now\n"
            time.sleep(0.5)  # it is within SQLite, or in a function that SQLite calls
            child.send_signal(number)
            assert child.communicate(timeout=30)[0] == "interrupted\n"
        finally:
            child.kill()


def test_what_a_search_wrote_is_read(sound, tmp_path):
    path = tmp_path / "analysed.db"  # by people with a client of SQLite
    shutil.copy(sound, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ANALYZE")
    with PopulationReader(path) as reader:
        assert reader.status().candidates > 3
    with PopulationReader(sound) as reader:
        assert reader.status().candidates > 3
