"""What people ask a file: the page of the schema is complete, and the views count as `status` does."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from sqlite_utils import Database

from docs import generated_pages
from evo_kernel.types import Purpose
from populations.migrations import migrate, migrations
from populations.population import open_population
from populations.reading import PopulationReader
from populations.schema import MIGRATIONS, SCHEMA, schema_digest, stored_objects
from tests.populations.samples import CARD, MODELED, TASK, passed, search


def test_the_page_holds_every_column() -> None:
    database = Database(memory=True)
    migrate(database)
    page = generated_pages.schema()
    for table in generated_pages.ABOUT:
        (section,) = (part for part in page.split("\n### ") if part.startswith(f"{table}\n"))
        assert all(
            f"| {column.name} |" in section or f"`{column.name}`" in section for column in database[table].columns
        )


def test_every_table_and_view_is_described() -> None:
    database = Database(memory=True)
    migrate(database)
    tables = [name for name in database.table_names() if not name.startswith(("_", "sqlite"))]
    assert len(migrations.pending(Database(memory=True))) == MIGRATIONS
    assert schema_digest(stored_objects(database.conn)) == SCHEMA
    assert set(generated_pages.ABOUT) == {*tables, *database.view_names()}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schema") / "p.db"
    with open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1) as population:
        rng = random.Random(1)
        search(population, 90, rng)
        best = population.best()
        assert best is not None
        confirmed = replace(passed(best.source, rng, MODELED), purpose=Purpose.CONFIRM)
        population.tell(population.recorded(best.candidate), confirmed)
    return path


def rows(path: Path, sql: str) -> list[dict]:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    found = [dict(row) for row in connection.execute(sql)]
    connection.close()
    return found


def test_views_say_what_the_reader_says(grown: Path) -> None:
    with PopulationReader(grown) as reader:
        status, history, strategies = reader.status(), reader.history(), reader.strategies()
        confirmed = reader.confirmed()
    improvements = rows(grown, "SELECT * FROM improvements")
    assert [row["candidate"] for row in improvements] == [row["candidate"] for row in history]
    assert sum(row["log_gain"] or 0.0 for row in improvements) == pytest.approx(
        history[0]["log_us"] - history[-1]["log_us"]
    )
    credit = {row["strategy"]: row for row in rows(grown, "SELECT * FROM strategy_credit")}
    for row in strategies:
        mine = credit[row["name"]]
        assert (mine["tried"], mine["passed"]) == (row["tried"], row["passed"]) and mine["witnessed"] <= mine["passed"]
        assert mine["best_log_gain"] == pytest.approx(row["best_log_gain"])
    spent = rows(grown, "SELECT what, of, SUM(amount) AS amount FROM ledger GROUP BY what, of")
    evaluations = {row["of"]: row["amount"] for row in spent if row["what"] == "evaluations"}
    assert evaluations == status.evaluations
    tokens = sum(row["amount"] for row in spent if row["what"] == "tokens")
    money = sum(row["amount"] for row in spent if row["what"] == "money")
    gpu_s = sum(row["amount"] for row in spent if row["what"] == "gpu")
    assert (tokens, money, gpu_s) == (status.tokens, pytest.approx(status.dollars), pytest.approx(status.gpu_s))
    assert history[0]["evaluations"] >= 1 and history[-1]["evaluations"] <= sum(status.evaluations.values())
    assert 0 <= history[0]["hours"] <= history[-1]["hours"] <= status.wall_s / 3600
    assert 0 < history[-1]["dollars"] <= status.dollars
    spent_by_then = [[row["evaluations"], row["hours"], row["dollars"]] for row in history]
    assert all(sorted(column) == list(column) for column in zip(*spent_by_then, strict=True))
    champions = rows(grown, "SELECT * FROM champions")
    assert [row["candidate"] for row in champions] == confirmed
    assert status.champion is not None
    assert (champions[0]["place"], champions[0]["candidate"]) == (1, status.champion.candidate)


def test_a_schema_as_older_versions_of_the_library_wrote_it_is_the_same(grown: Path, tmp_path: Path) -> None:
    path = tmp_path / "older.db"
    shutil.copy(grown, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for old, new in (('"notes"', "[notes]"), ('"text"', "[text]"), (" REAL", " FLOAT"), ("\n   ", " ")):
            sql = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE tbl_name IN ('notes', 'ceilings')"
            assert connection.execute(sql, (old, new)).rowcount == 2
        connection.commit()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        stored = dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall())
        assert "TABLE [notes] ( [id]" in stored["notes"].replace('"id"', "[id]") and " FLOAT NOT" in stored["ceilings"]
    with PopulationReader(path) as reader:
        assert reader.status().candidates > 3
    with open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1) as population:
        assert population.best() is not None


def test_the_queries_of_the_page_run(grown: Path) -> None:
    queries = generated_pages.SCHEMA.split("```sql\n")[1].split("```")[0].strip().splitlines()
    assert len(queries) == 4
    for query in queries:
        assert isinstance(json.dumps(rows(grown, query)), str)
