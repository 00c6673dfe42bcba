"""A population edited by hand ends in a sentence that names the file, the table and the row."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from evo_kernel.errors import PopulationError
from evo_kernel.types import CaseKind, PairedComparison, Purpose, Rival, Status
from populations.population import open_population
from populations.reading import PopulationReader
from populations.rows import digest
from tests.populations.samples import CARD, MODELED, TASK, passed, search

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


def test_a_file_that_changes_what_is_written_or_has_columns_of_no_kind_is_named(sound, tmp_path):
    faster = "UPDATE measurements SET median_us = median_us / 10 WHERE evaluation = new.evaluation"
    for name, script, says in (
        ("acts.db", f"CREATE TRIGGER faster AFTER INSERT ON measurements BEGIN {faster}; END", "a trigger, 'faster'"),
        ("untyped.db", "ALTER TABLE notes ADD COLUMN mood", "row 1 of notes: its mood is not what it should be"),
    ):
        path = tmp_path / name
        shutil.copy(sound, path)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(script)
            connection.execute("INSERT INTO notes (author, text, at) VALUES ('a', 'b', 1.0)")
            connection.execute("ANALYZE")
            if name == "untyped.db":
                connection.execute("UPDATE notes SET mood = 1")
            connection.commit()
        with pytest.raises(PopulationError, match=f"^{re.escape(str(path))}: .*{says}"):
            PopulationReader(path)
        with pytest.raises(PopulationError, match=says):
            open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1)


def test_what_a_search_wrote_is_read(sound, tmp_path):
    path = tmp_path / "analysed.db"  # by people with a client of SQLite
    shutil.copy(sound, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ANALYZE")
    with PopulationReader(path) as reader:
        assert reader.status().candidates > 3
    with PopulationReader(sound) as reader:
        assert reader.status().candidates > 3
