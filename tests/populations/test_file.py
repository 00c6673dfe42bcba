"""The file: who writes it, who reads it, what a kill leaves, old files."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from sqlite_utils import Database

from evo_kernel.errors import InfraError, PopulationError, PopulationLocked
from evo_kernel.types import CaseKind, PairedComparison, Purpose, Rival, Source, Status
from populations.connect import owner
from populations.migrations import migrations
from populations.population import open_population
from populations.reading import PopulationReader
from populations.store import Store
from tests.populations.samples import CARD, MEASURED, MODELED, STRATEGIES, TASK, failed, passed, propose, search

ROOT = Path(__file__).resolve().parents[2]


def open_it(path, **more):
    return open_population(path, **({"task": CARD, "task_identity": TASK, "environment": MODELED, "seed": 1} | more))


def start_writer(path: Path, body: str) -> subprocess.Popen:
    """A child process that opens the population, runs `body`, and says so."""
    lines = [
        "import random, sys, time",
        "from tests.populations.test_file import open_it",
        "from tests.populations.samples import search",
        f"with open_it({str(path)!r}) as population:",
        textwrap.indent(textwrap.dedent(body), "    "),
    ]
    text = "\n".join(lines)
    return subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stdout=subprocess.PIPE, text=True)


SEARCH_FOREVER = """
rng = random.Random(1)
while True:
    search(population, 5, rng)
    print(population.counters().candidates, population.digest(), flush=True)
"""


def test_a_second_writer_is_refused_by_pid_and_host(tmp_path):
    path = tmp_path / "p.db"
    writer = start_writer(path, SEARCH_FOREVER)
    try:
        assert writer.stdout.readline()
        with pytest.raises(PopulationLocked) as caught:
            open_it(path)
        assert (caught.value.pid, caught.value.host) == (writer.pid, socket.gethostname())
        assert str(writer.pid) in str(caught.value)
        assert owner(path) == (writer.pid, socket.gethostname())
        with PopulationReader(path) as reader:
            assert reader.status().writer == (writer.pid, socket.gethostname())
    finally:
        writer.kill()
        writer.wait()
    assert owner(path) is None
    with open_it(path) as population:  # SIGKILL released it
        assert population.counters().candidates > 0


def test_the_same_process_is_refused_too(tmp_path):
    with open_it(tmp_path / "p.db"), pytest.raises(PopulationLocked):
        open_it(tmp_path / "p.db")


def test_a_forked_child_does_not_keep_the_file(tmp_path):
    """An orphan that outlives a killed writer must not lock everyone out."""
    born, told = os.pipe()
    with open_it(tmp_path / "p.db"):
        child = os.fork()
        if child == 0:
            os.write(told, b"!")
            signal.pause()
            os._exit(0)
        os.read(born, 1)
        os.close(born)
        os.close(told)
    try:
        with open_it(tmp_path / "p.db") as opened:
            os.kill(child, 0)  # the orphan lives, and yet the file opens
            assert opened.counters().attempts == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("lines", [1, 4, 9])
def test_what_was_told_survives_sigkill(tmp_path, lines):
    path = tmp_path / "p.db"
    writer = start_writer(path, SEARCH_FOREVER)
    reports = [writer.stdout.readline().split() for _ in range(lines)]
    os.kill(writer.pid, signal.SIGKILL)
    reports += [line.split() for line in writer.stdout.read().split("\n")[:-1]]
    writer.wait()
    with open_it(path) as population:
        counters = population.counters()
        assert counters.candidates >= int(reports[-1][0])
        assert all(one.candidate > int(reports[-1][0]) for one in population.pending())
        if counters.candidates == int(reports[-1][0]) and not population.pending():
            assert population.digest() == reports[-1][1]
        search(population, 5, random.Random(2))
    with PopulationReader(path) as reader:
        status = reader.status()
        assert status.candidates + status.failures + status.abandoned - 1 == status.attempts
        twice = "SELECT COUNT(*) FROM (SELECT candidate FROM evaluations GROUP BY 1 HAVING COUNT(*) > 1)"
        assert reader.connection.execute(twice).fetchone()[0] == 0


def test_readers_work_while_the_file_is_written(tmp_path):
    path = tmp_path / "p.db"
    seen, errors, done = [], [], threading.Event()
    with open_it(path) as population:
        search(population, 1, random.Random(1))

        def read():
            try:
                while not done.is_set():
                    with PopulationReader(path) as reader:
                        status = reader.status()
                        seen.append(status.candidates)
                        assert reader.candidate(status.candidates).candidate == status.candidates
            except BaseException as error:  # noqa: BLE001 - handed to the main thread
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        search(population, 150, random.Random(2))
        done.set()
        thread.join()
    assert not errors
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


def test_a_reader_sees_what_the_writer_knows(tmp_path):
    path, rng = tmp_path / "p.db", random.Random(3)
    with open_it(path, run={"budget": {"evaluations": 9}}) as population:
        search(population, 60, rng)
        brief = population.ask()
        open_brief = population.ask()
        population.record(brief, propose(brief, rng))
        population.event("champion", {"candidate": 3})
        population.diary.add("wgmma needs 128 rows", "avo", open_brief.attempt, [])
        population.store_ceilings({"copy_bytes/s": 4.26e12})
        with PopulationReader(path) as reader:
            counters, status = population.counters(), reader.status()
            assert (status.attempts, status.candidates, status.failures, dict(status.evaluations)) == (
                counters.attempts,
                counters.candidates,
                counters.failures,
                counters.evaluations,
            )
            assert (status.open_attempts, status.abandoned, status.pending) == (1, 0, 1)
            assert json.loads(json.dumps(status.as_data()))["best"]["candidate"] == population.best().candidate
            assert reader.relative(population.best().candidate) == population.best()
            assert reader.sessions()[-1].config == {"budget": {"evaluations": 9}}
            assert reader.connection.execute("SELECT data FROM events").fetchall() == [('{"candidate":3}',)]
            assert reader.task == CARD
            assert reader.history()[-1]["candidate"] == population.best().candidate
            assert {row["name"] for row in reader.strategies()} == {strategy.name for strategy in STRATEGIES}
            with pytest.raises(PopulationError, match="numbered 1 to"):
                reader.candidate(10**6)
            with pytest.raises(sqlite3.OperationalError):
                reader.connection.execute("DELETE FROM runs")
    with PopulationReader(path) as reader:
        assert (reader.status().open_attempts, reader.status().abandoned) == (0, 1)


def test_confirmations_move_the_readers_best(tmp_path):
    with open_it(tmp_path / "p.db") as population, PopulationReader(tmp_path / "p.db") as reader:
        search(population, 30, random.Random(4))
        ticket = population.recorded(population.best().candidate)
        population.tell(ticket, replace(failed(ticket.proposal.source), purpose=Purpose.CONFIRM))
        ticket = population.recorded(population.best().candidate)
        assert reader.champion() is None
        verdict = passed(ticket.proposal.source, random.Random(5))
        population.tell(ticket, replace(verdict, purpose=Purpose.CONFIRM))
        assert reader.best().candidate == population.best().candidate == ticket.candidate
        assert reader.best().confirmed
        assert reader.champion() == reader.best()


def test_a_read_only_folder_can_be_read(tmp_path):
    path = tmp_path / "p.db"
    with open_it(path) as population:
        population.plant(Source("# seed"))
    for leftover in tmp_path.glob("p.db-*"):
        leftover.unlink()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with PopulationReader(path) as reader:
            assert reader.status().candidates == 1
    finally:
        tmp_path.chmod(0o755)


def test_what_is_no_population_is_named(tmp_path):
    with pytest.raises(PopulationError, match="evo-kernel run"):
        PopulationReader(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("something else entirely " * 100)
    with pytest.raises(PopulationError, match="not a population"):
        PopulationReader(tmp_path / "text.db")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(PopulationError, match="not a population"):
        PopulationReader(tmp_path / "other.db")


def test_an_old_file_opens(tmp_path):
    """A file made by the first schema is read as it is, and migrated by whoever writes."""
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None)
    migrations.apply(Database(connection), stop_before="0002_lookups")
    connection.execute("INSERT INTO tasks VALUES (1, ?, 'softmax', ?)", (TASK, json.dumps(asdict(CARD))))
    values = "(1, ?, 'modeled', 'sm_90', '', '2.13.0', '3.9.0', 1, 1, 'namespaces')"
    connection.execute(f"INSERT INTO environments VALUES {values}", (MODELED.key,))
    connection.execute("INSERT INTO runs VALUES (1, 1, 1, 5, '{\"gone\": 1}', '{}', 1, 'elsewhere', 0, 0, 1.0)")
    connection.execute("INSERT INTO attempts VALUES (1, 1, NULL, 0, 'plant', '[]', 1.0)")
    connection.execute("INSERT INTO sources VALUES (1, ?, 'triton', '# seed')", (Source("# seed").sha256,))
    connection.execute("INSERT INTO candidates VALUES (1, 1, 1, 'seed', NULL, NULL, 0, 0, 0, 0.0, 0, 1.0)")
    connection.close()
    with PopulationReader(path) as reader:
        assert reader.status().pending == 1
    with open_it(path) as population:
        (pending,) = population.pending()
        assert pending.proposal.source == Source("# seed")
        population.tell(pending, passed(Source("# seed"), random.Random(1)))
        assert population.best().candidate == 1
    with Database(path) as database:
        assert not migrations.pending(database)
    with open_it(path) as population:
        assert population.best().candidate == 1


def test_every_link_holds(tmp_path):
    path = tmp_path / "p.db"
    with open_it(path) as population:
        search(population, 60, random.Random(6))
    store = Store(path)
    assert store.connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
    assert store.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store.connection.execute("PRAGMA foreign_key_check").fetchall() == []
    with pytest.raises(sqlite3.IntegrityError), store.write() as connection:
        connection.execute("INSERT INTO notes (attempt, author, text, at) VALUES (999999, 'a', 'b', 1.0)")
    store.close()


def test_looking_imports_nothing_slow():
    slow = ("numpy", "networkx", "sqlite_utils", "torch")
    text = f"import sys, populations.reading; print([name for name in {slow} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_an_old_file_with_measurements_is_read_and_gets_the_clocks_columns(tmp_path):
    """What an old file does not know of the clock is None; what is told from then on comes back as it was told."""
    path = tmp_path / "old.db"
    with open_it(path, environment=MEASURED) as population:
        search(population, 3, random.Random(5))
    with Database(path) as database:
        for column in ("clock_mhz", "power_w", "drift"):
            database.execute(f"ALTER TABLE measurements DROP COLUMN {column}")
        database.execute("DELETE FROM _sqlite_migrations WHERE name = '0003_clock'")
        database.conn.commit()
    told = passed(Source("# later\ndef run(x): ..."), random.Random(6), MEASURED)
    for expected in (None, 1980.0):
        reader = PopulationReader(path)
        candidates = [row[0] for row in reader.connection.execute("SELECT id FROM candidates ORDER BY id")]
        found = [e for c in candidates for e in reader.candidate(c).evaluations if e.measurements]
        assert found and found[0].measurements[0].clock_mhz is None
        assert found[-1].measurements[0].clock_mhz == expected
        reader.close()
        if expected is None:
            with open_it(path, environment=MEASURED) as population:
                population.tell(population.plant(Source("# later\ndef run(x): ...")), told)
    assert found[-1].measurements == told.measurements


def test_comparisons_come_back_as_they_were_told(tmp_path):
    path = tmp_path / "p.db"
    found = (
        PairedComparison("large", CaseKind.SEARCH, Rival.FIRST, "ab" * 32, 1.7, 1.6999, 1.7001, 40, "faster", 1.9),
        PairedComparison("huge", CaseKind.CONFIRM, Rival.FIRST, "cd" * 32, 0.1 + 0.2, 0.25, 0.35, 100, "slower"),
        PairedComparison("huge", CaseKind.CONFIRM, Rival.CHAMPION, "ab" * 32, 1.0, 1.0, 1.0, 0, "the same plan"),
    )
    with open_it(path) as population:
        search(population, 3, random.Random(5))
        ticket = population.recorded(population.best().candidate)
        verdict = replace(passed(ticket.proposal.source, random.Random(5)), purpose=Purpose.CONFIRM, comparisons=found)
        population.tell(ticket, verdict)
        assert population.champion().candidate == ticket.candidate
        refuted = replace(verdict, status=Status.REFUTED, reason="not faster", score=None)
        population.tell(ticket, refuted)
        assert population.champion() is None
        digest = population.digest()
    with PopulationReader(path) as reader:
        told = [one for one in reader.candidate(ticket.candidate).evaluations if one.purpose is Purpose.CONFIRM]
        assert told == [verdict, refuted] and told[0].comparisons == found
        assert reader.champion() is None and reader.best().candidate != ticket.candidate
    with open_it(path) as population:
        assert population.digest() == digest


def test_a_file_from_before_comparisons_is_read_and_gets_their_table(tmp_path):
    path = tmp_path / "old.db"
    with open_it(path) as population:
        search(population, 3, random.Random(5))
    with Database(path) as database:
        database.table("comparisons").drop()
        database.execute("DELETE FROM _sqlite_migrations WHERE name = '0004_comparisons'")
        database.conn.commit()
    with PopulationReader(path) as reader:
        assert reader.candidate(1).evaluations[0].comparisons == ()
    with open_it(path) as population:
        assert population.best().evaluation.comparisons == ()
    with Database(path) as database:
        assert database.table("comparisons").exists()


def test_what_was_rolled_back_is_interned_anew(tmp_path):
    store = Store(tmp_path / "a.db")
    try:
        with pytest.raises(RuntimeError), store.write():
            store.intern_environment(MODELED), store.intern_strategy(STRATEGIES[0])
            raise RuntimeError
        with store.write():
            ids = store.intern_environment(MODELED), store.intern_strategy(STRATEGIES[0])
        rows = store.rows("SELECT id FROM environments"), store.rows("SELECT id FROM strategies")
        assert rows == ([(ids[0],)], [(ids[1],)])
    finally:
        store.close()


def test_a_full_disk_is_the_machines_failure_and_loses_nothing(tmp_path):
    path = tmp_path / "a.db"
    with open_it(path) as population:
        search(population, 3, random.Random(5))
        digest, before = population.digest(), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("a.db-wal").stat().st_size, before[1]))
        try:
            for _ in range(2):  # the first must leave no transaction open
                with pytest.raises(InfraError, match=r"takes no more \(.*\)\. Make room, then `evo-kernel resume"):
                    population.plant(Source("x = 1\n" * 5000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert population.digest() == digest
        search(population, 2, random.Random(6))
