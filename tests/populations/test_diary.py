"""Turns, memories, founded notes, findings and the list of versions, in the real file."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

import pytest
from sqlite_utils import Database

from evo_kernel.errors import PopulationError
from evo_kernel.types import Call, CaseKind, PairedComparison, Proposal, Purpose, Rival, Source
from evo_kernel.types.notes import Evidence
from evo_kernel.types.promotion import stands, surely_better
from populations.population import open_population
from populations.reading import PopulationReader
from tests.populations.samples import CARD, MEASURED, MODELED, STRATEGIES, TASK, failed, passed


def open_it(path, environment=MODELED):
    return open_population(path, task=CARD, task_identity=TASK, environment=environment, seed=3)


@pytest.fixture
def population(tmp_path):
    with open_it(tmp_path / "p.db") as found:
        found.tell(found.plant(Source("seed")), passed(Source("seed"), random.Random(1), log_us=4.0))
        yield found


def test_a_turn_that_unfolds_without_end_is_refused(tmp_path):
    with open_it(tmp_path / "p.db") as population:
        population.plant(Source("seed"))
        attempt = population.ask().attempt
        population.diary.append(attempt, "opening", {})
    for torn in (zlib.compress(bytes(2**28 + 1), 1), zlib.compress(b"{}")[:-1], b"nonsense"):
        Database(tmp_path / "p.db").execute("UPDATE turns SET data = ?", (torn,)).connection.commit()
        with open_it(tmp_path / "p.db") as population, pytest.raises(PopulationError, match="Turn 0 of attempt 2"):
            next(population.diary.turns(attempt))


def call(number: int) -> Call:
    return Call("m", 100 + number, 10, 0, 0.5, float(number), "", "messages")


def test_turns_come_back_and_their_cost_is_counted_once(tmp_path):
    path = tmp_path / "p.db"
    with open_it(path) as population:
        population.plant(Source("seed"))
        brief = population.ask()
        diary = population.diary
        diary.append(brief.attempt, "opening", {"text": "é"}, [call(1)])
        diary.append(brief.attempt, "answer", {"n": 1}, [call(2), call(2)])  # the same cost twice is two calls
        diary.append(brief.attempt, "result", {"n": 2}, (), {"score": 3}, 1.5)
        population.spend(brief.attempt, [call(3)])  # whoever makes calls may have written them already
        diary.append(brief.attempt, "answer", {"n": 3}, [call(3)])
        live = population.counters()
        assert (live.calls, live.dollars, live.evaluations, live.gpu_s) == (4, 2.0, {"score": 3}, 1.5)
    with open_it(path) as population:  # the attempt is open: it is the first to be asked for
        again = population.counters()
        assert replace(again, wall_s=0.0) == replace(live, wall_s=0.0)
        assert [kind for kind, _ in population.diary.turns(1)] == []
        brief = population.ask()
        assert brief.attempt == 2 and population.counters().attempts == live.attempts
        turns = list(population.diary.turns(brief.attempt))
        assert turns == [("opening", {"text": "é"}), ("answer", {"n": 1}), ("result", {"n": 2}), ("answer", {"n": 3})]
        mine = tuple(replace(one, messages="") for one in (call(4),))
        population.diary.append(brief.attempt, "answer", {}, [call(4)])
        population.record(brief, Proposal(Source("child"), "avo", STRATEGIES[0], calls=mine))
        assert population.counters().calls == 5
        assert population.ask().attempt == 3, "what has ended is not asked for again"
    with open_it(path) as population:
        assert population.counters().calls == 5 and population.ask().attempt == 4
    with PopulationReader(path) as reader:
        assert reader.status().evaluations == {"score": 3}


def test_an_old_file_is_read_and_gets_its_tables(tmp_path):
    path = tmp_path / "p.db"
    with open_it(path) as population:
        population.plant(Source("seed"))
    with Database(path) as database:
        for view in database.view_names():
            database.view(view).drop()
        for table in ("turns", "memories", "findings"):
            database.table(table).drop()
        for column in ("evidence", "refutes"):
            database.execute(f"ALTER TABLE notes DROP COLUMN {column}")
        database.execute("DELETE FROM _sqlite_migrations WHERE name IN ('0005_agents', '0008_views')")
        database.conn.commit()
    with PopulationReader(path) as reader:
        assert reader.status().evaluations == {}
    with open_it(path) as population:
        assert population.diary.memories(5) == [] and population.diary.notes(5) == []


def test_memories_are_kept_once_an_attempt_and_kind(population):
    attempt = population.ask().attempt
    population.diary.remember(attempt, "attempt", {"n": 1})
    population.diary.remember(attempt, "attempt", {"n": 2})
    population.diary.remember(attempt, "review", {"n": 3})
    assert [row[:3] for row in population.diary.memories(5)] == [
        (attempt, "attempt", {"n": 1}), (attempt, "review", {"n": 3}),
    ]  # fmt: skip


def test_only_founded_notes_come_back(population):
    diary, cited = population.diary, [Evidence("C1", 9, "passed", 1.0)]
    first = diary.add("split-k helps at small m", "avo", None, cited)
    diary.add("nothing cited", "avo", None, [])
    second = diary.add("persistent kernels help", "avo", None, cited)
    assert [note.number for note in diary.notes(9)] == [second, first]
    assert [note.number for note in diary.notes(9, "does SPLIT-K pay?")] == [first]
    diary.add("not at large k", "avo", None, cited, first)
    assert diary.note(first).refuted == "not at large k" and len(diary.notes(9)) == 2
    assert diary.note(99) is None
    assert list(diary.note(first).evidence) == cited


def test_findings_are_verdicts_of_a_later_session(tmp_path):
    verdict = passed(Source("x"), random.Random(4), MEASURED)
    wrong = replace(verdict.verdicts[0], plan="w", status=failed(Source("y")).status, reason="wrong", measurement=None)
    with open_it(tmp_path / "p.db", MEASURED) as population:
        population.found_out((*verdict.verdicts, wrong))
        assert tuple(population.verdicts(MEASURED.key)) == (*verdict.verdicts, wrong)
        assert not tuple(population.verdicts(MODELED.key))


def test_versions_by_best_newest_and_path(population):
    for number, log_us in enumerate((3.0, 5.0, 3.5), start=2):
        brief = population.ask()
        source = Source(f"# child {number}")
        ticket = population.record(brief, Proposal(source, "avo", STRATEGIES[0], parents=(("parent", 1),)))
        population.tell(ticket, passed(source, random.Random(number), log_us=log_us))
    assert [one.number for one in population.versions(9, "best")] == [2, 4, 1, 3]
    assert [one.number for one in population.versions(2, "newest")] == [4, 3]
    first, second = population.versions(9, "path", 4)
    assert (first.number, second.number, second.parent) == (1, 4, 1)
    assert second.log_gain == pytest.approx(0.5) and second.strategy == "online-softmax"
    assert [one.number for one in population.versions(9, "path")] == [1, 2]


# ---- the gate --------------------------------------------------------------------------------------------------------


def scored(log_us, spread=0.0, environment=MEASURED, slow_case=0.0, seed=None):
    """`spread`: of the intervals; `slow_case`: log by which the first case is slower."""
    found = passed(Source(f"k{log_us}{seed}"), random.Random(seed or log_us), environment, log_us)
    measured = []
    for number, one in enumerate(found.measurements):
        median = one.median_us * (2.718281828**slow_case if number == 0 else 1.0)
        low, high = median * (1 - spread), median * (1 + spread)
        measured.append(replace(one, median_us=median, low_us=low, high_us=high))
    return replace(found, measurements=tuple(measured))


def test_the_gate_wants_a_sure_gain_and_no_regression():
    older = scored(4.0)
    assert surely_better(scored(3.9), older).passed
    assert "not sure" in surely_better(scored(3.995), older).reason, "within the drift of a GPU"
    assert surely_better(scored(3.995, environment=MODELED), scored(4.0, environment=MODELED)).passed
    assert "not sure" in surely_better(scored(3.95, 0.2), scored(4.0, 0.2)).reason
    slower = surely_better(scored(3.8, slow_case=0.3), older)
    assert not slower.passed and "large is 10.5 % slower" in slower.reason and slower.gain.ratio > 1.0
    assert surely_better(scored(3.8, slow_case=0.3), older, 0.2).passed
    assert "same kernel" in surely_better(older, older).reason
    assert not surely_better(failed(Source("x")), older).passed
    assert surely_better(scored(9.0), None).passed, "what is correct passes where there is nothing to beat"


def test_a_confirmation_gives_no_hidden_case_away():
    wrong = replace(failed(Source("x")), purpose=Purpose.CONFIRM, reason="wrong on confirm_secret_shape")
    said = stands(wrong)
    assert not said.passed and "secret" not in said.reason
    assert stands(replace(scored(3.0), purpose=Purpose.CONFIRM)).passed


def test_a_refuted_confirmation_says_by_whom():
    confirmed = replace(scored(3.0), purpose=Purpose.CONFIRM)
    slower = PairedComparison("secret", CaseKind.CONFIRM, Rival.CHAMPION, "p", 0.9, 0.9, 0.9, 0, "slower")
    said = stands(replace(confirmed, comparisons=(slower,)), 0.5)
    assert not said.passed and "slower than the version to beat" in said.reason and "secret" not in said.reason
    no_faster = PairedComparison("large", CaseKind.SEARCH, Rival.FIRST, "p", 1.0, 0.9, 1.1, 40, "unsure")
    said = stands(replace(confirmed, comparisons=(no_faster,)))
    assert not said.passed and "not surely faster than the first kernel" in said.reason


# ---- the gate's confirmation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("knobs, champion, counts", [(1024, None, True), (512, None, False), (1024, 1, True)])
def test_the_confirmation_of_a_commit_counts_for_its_candidate(tmp_path, knobs, champion, counts):
    rng, source = random.Random(5), Source("# new")
    with open_it(tmp_path / "p.db") as population:
        seed = population.plant(Source("# seed"))
        population.tell(seed, passed(Source("# seed"), rng, log_us=4.0))
        if champion:
            population.tell(seed, replace(passed(Source("# seed"), rng, log_us=4.0), purpose=Purpose.CONFIRM))
        confirmed = replace(passed(source, rng, log_us=3.0), purpose=Purpose.CONFIRM, knobs=(("BLOCK", knobs),))
        population.keep_confirmation(confirmed, rival=1)
        before = population.counters().charged
        ticket = population.record(population.ask(), Proposal(source, "avo"))
        score = passed(source, rng, log_us=3.0)
        population.tell(ticket, score)
        assert population.counters().charged == before + sum(score.charged.values())  # the gate's cost is booked
        assert (population.champion() is not None and population.champion().candidate == ticket.candidate) is counts
        digest = population.digest()
    with open_it(tmp_path / "p.db") as population:
        assert population.digest() == digest


def test_a_confirmation_beside_another_than_the_champion_does_not_count(tmp_path):
    rng, source = random.Random(5), Source("# new")
    with open_it(tmp_path / "p.db") as population:
        first, other = (population.plant(Source(f"# {n}")) for n in "ab")
        for ticket in (first, other):
            population.tell(ticket, passed(ticket.proposal.source, rng, log_us=4.0))
        population.tell(other, replace(passed(other.proposal.source, rng), purpose=Purpose.CONFIRM))
        population.keep_confirmation(replace(passed(source, rng, log_us=3.0), purpose=Purpose.CONFIRM), rival=1)
        ticket = population.record(population.ask(), Proposal(source, "avo"))
        population.tell(ticket, passed(source, rng, log_us=3.0))
        assert population.champion().candidate == other.candidate
