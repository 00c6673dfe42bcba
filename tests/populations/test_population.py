"""The loop's memory: protocol, lossless storage, resume, environments, budgets."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest

from evo_kernel.errors import PopulationError
from evo_kernel.types import Population, Proposal, Purpose, Source, Status
from populations.archive import PopulationSettings
from populations.population import open_population
from populations.reading import PopulationReader
from tests.populations.samples import (
    CARD,
    MEASURED,
    MODELED,
    STRATEGIES,
    TASK,
    failed,
    passed,
    propose,
    search,
)


@pytest.fixture
def opened(tmp_path):
    """Opens the same file again and again: opened(environment=..., settings=...)."""

    def do(environment=MODELED, **more):
        return open_population(
            tmp_path / "p.db", **({"task": CARD, "task_identity": TASK, "environment": environment, "seed": 7} | more)
        )

    return do


def test_is_a_population(opened):
    with opened() as population:
        protocol: Population = population  # checked by pyright too
        assert all(callable(getattr(protocol, name)) for name in ("ask", "record", "tell", "fail", "pending", "best"))


def test_ask_before_a_seed_says_what_to_do(opened):
    with opened() as population, pytest.raises(PopulationError, match="plant a root"):
        population.ask()


def test_planting_a_source_twice_returns_the_same_root(opened):
    with opened() as population:
        first = population.plant(Source("# a"))
        other = population.plant(Source("# b"))
        again = population.plant(Source("# a"))
        assert (again.candidate, again.brief) == (first.candidate, first.brief)
        assert other.candidate != first.candidate
        assert first.brief.generation == 0
        assert population.counters().candidates == 2
        assert population.counters().attempts == 0
    with opened() as population:
        assert population.plant(Source("# a")).candidate == first.candidate


def test_a_proposal_comes_home(opened):
    rng = random.Random(1)
    with opened() as population:
        seed = population.plant(Source("# seed"))
        population.tell(seed, passed(seed.proposal.source, rng, log_us=5.0))
        brief = population.ask()
        assert brief.parent.candidate == seed.candidate
        assert brief.parent.source == Source("# seed")
        proposal = propose(brief, rng)
        recorded = population.record(brief, proposal)
        told = passed(proposal.source, rng, log_us=4.0)
        (credit,) = population.tell(recorded, told, witnessed=True)
        assert credit.log_gain == pytest.approx(1.0)
        assert (credit.strategy, credit.operator, credit.depth) == (proposal.strategy.name, "mtmc", 0)
        assert credit.decision == proposal.decisions[0]
        best = population.best()
        assert best.candidate == recorded.candidate
        assert best.evaluation == told
        assert best.strategies == (proposal.strategy,)
        assert best.generation == 1


def test_sources_are_handed_out_as_they_were_scored(opened):
    """The samples' verdicts are of BLOCK = 1024."""
    rng = random.Random(3)

    def with_block(value):
        return Source(f"BLOCK = {value}\ndef run(x): ...")

    with opened() as population:
        seed = population.plant(with_block(64))
        assert population.relative(seed.candidate).source == with_block(64)
        population.tell(seed, passed(with_block(64), rng, log_us=4.0))
        brief = population.ask()
        for scored in (brief.parent, population.best(), population.relative(seed.candidate)):
            assert scored.source == with_block(1024)
        assert {with_block(64).sha256, with_block(1024).sha256} == brief.known_sources.keys()
        assert population.recorded(seed.candidate).proposal.source == with_block(64)
        with PopulationReader(population.path) as reader:
            view = reader.candidate(seed.candidate)
            assert reader.relative(seed.candidate).source == view.source == with_block(1024)
            assert view.proposal.source == with_block(64)
        population.tell(seed, replace(passed(with_block(64), rng, log_us=3.0), knobs=(("BLOCK", 256),)))
        assert population.best().source == with_block(256)


def test_a_candidate_is_shown_by_the_score_that_it_stands_by(opened):
    """Judged here, elsewhere, and then in vain: the standings go by the first."""
    rng = random.Random(4)
    with opened(MEASURED) as population:
        seed = population.plant(Source("# seed"))
        score = passed(Source("# seed"), rng, MEASURED, log_us=4.0)
        population.tell(seed, score)
    with opened() as population:
        population.tell(seed, passed(Source("# seed"), rng, log_us=5.0))
    with opened(MEASURED) as population:
        population.tell(seed, failed(Source("# seed"), Status.INFRA_ERROR, MEASURED))
        with PopulationReader(population.path) as reader:
            assert reader.environment == MEASURED
            assert reader.candidate(seed.candidate).evaluation == reader.relative(seed.candidate).evaluation == score


def test_an_exhausted_parent_is_not_asked_for_again_in_its_session(opened):
    rng = random.Random(1)

    def asked(population, count=200):
        return [population.ask().parent.candidate for _ in range(count)]

    with opened() as population:
        for name, log_us in (("fast", 3.0), ("slow", 5.0)):
            seed = population.plant(Source(f"# {name}"))
            population.tell(seed, passed(seed.proposal.source, rng, log_us=log_us))
        before = asked(population)
        assert before.count(1) > 100
        brief = next(brief for brief in iter(population.ask, None) if brief.parent.candidate == 1)
        population.fail(brief, "mtmc", "everything was tried", exhausted=True)
        after = asked(population)
        assert after.count(1) == 0
        population.fail(population.ask(), "mtmc", "nothing came to mind")
        digest = population.digest()
    with opened() as population:  # a later session may have other operators
        assert population.digest() == digest
        assert asked(population).count(1) > 100


def test_an_unwitnessed_strategy_is_credited_to_other(opened):
    rng = random.Random(1)
    with opened() as population:
        search(population, 0, rng)
        brief = population.ask()
        recorded = population.record(brief, propose(brief, rng))
        (credit,) = population.tell(recorded, passed(recorded.proposal.source, rng), witnessed=False)
        assert (credit.strategy, credit.witnessed) == ("other", False)


def test_evaluations_and_proposals_come_back_exactly(opened):
    rng = random.Random(2)
    told = {}
    with opened(MEASURED) as population:
        search(population, 0, rng)
        for n in range(20):
            brief = population.ask()
            recorded = population.record(brief, replace(propose(brief, rng), parents=(("parent", 1), ("donor", 1))))
            source = recorded.proposal.source
            verdict = passed(source, rng, MEASURED) if n % 3 else failed(source, Status.TIMEOUT, MEASURED)
            if n % 5 == 1 and verdict.passed:  # a loser of the tuner: measured, but not the evaluation's own
                extra = replace(verdict.measurements[0], plan="0123", iqr_us=3.0, details={})
                more = replace(verdict.verdicts[0], plan="0123", measurement=extra)
                verdict = replace(verdict, verdicts=(*verdict.verdicts, more))
            population.tell(recorded, verdict, True)
            told[recorded.candidate] = (recorded.proposal, verdict)
    with opened(MEASURED) as population:
        for candidate, (proposal, verdict) in told.items():
            assert population.relative(candidate).evaluation == verdict
            assert population.recorded(candidate).proposal == proposal
        found = list(population.verdicts(MEASURED.key))
        assert found[2:] == [one for _, verdict in told.values() for one in verdict.verdicts]
        assert list(population.verdicts(MODELED.key)) == []


def test_a_ticket_rebuilt_on_resume_is_the_one_handed_out(opened):
    rng = random.Random(3)
    with opened() as population:
        search(population, 30, rng)
        brief = population.ask()
        recorded = population.record(brief, propose(brief, rng))
        ticket = population.recorded(recorded.candidate)
    with opened() as population:
        (pending,) = population.pending()
        assert pending.candidate == recorded.candidate
        assert pending.proposal == recorded.proposal
        assert replace(pending.brief, tried=()) == replace(brief, tried=())
        assert pending.brief == ticket.brief


def test_the_same_seed_draws_the_same_briefs_across_a_resume(tmp_path):
    def run(name, sizes):
        briefs, rng = [], random.Random(4)
        for size in sizes:
            with open_population(
                tmp_path / name, task=CARD, task_identity=TASK, environment=MODELED, seed=7
            ) as population:
                for recorded in search(population, size, rng):
                    briefs.append((recorded.brief.attempt, recorded.brief.parent.candidate, recorded.brief.seed))
                    briefs.append(tuple(relative.candidate for relative in recorded.brief.inspirations))
        return briefs

    assert run("a.db", [60]) == run("b.db", [20, 25, 15])


def test_pending_comes_back_until_something_but_infra_error_is_told(opened):
    rng = random.Random(5)
    with opened() as population:
        search(population, 3, rng)
        brief = population.ask()
        recorded = population.record(brief, propose(brief, rng))
        credits = population.tell(recorded, failed(recorded.proposal.source, Status.INFRA_ERROR))
        assert credits == []
        assert [one.candidate for one in population.pending()] == [recorded.candidate]
    with opened() as population:
        (pending,) = population.pending()
        assert population.tell(pending, failed(pending.proposal.source), False)[0].reward < 0
        assert population.pending() == []


def test_another_environment_starts_with_the_elites_of_the_one_before(opened):
    rng = random.Random(6)
    with opened() as population:
        search(population, 80, rng)
        old_best = population.best()
        elites = sorted(population._board.islands.elites())
        brief = population.ask()
        never = population.record(brief, propose(brief, rng))
        credited = len(list(population.credits()))
    with opened(MEASURED) as population:
        assert population.best() is None
        assert population.counters().best_score is None
        pending = population.pending()
        assert [one.candidate for one in pending] == [*elites, never.candidate]
        assert old_best.candidate in elites
        assert pending[0].brief.parent.evaluation is None  # a score made elsewhere is not shown
        for one in pending[:-1]:
            again = population.tell(one, passed(one.proposal.source, rng, MEASURED), True)
            assert again == []  # credit is paid once
        assert [one.candidate for one in population.pending()] == [never.candidate]
        assert population.best().evaluation.environment == MEASURED
        assert len(list(population.credits())) == credited
    with opened() as population:
        assert population.best() == old_best


def test_a_refuted_best_makes_room_and_a_confirmed_one_is_champion(opened):
    rng = random.Random(7)
    with opened() as population:
        search(population, 40, rng)
        assert population.champion() is None
        first = population.best().candidate
        ticket = population.recorded(first)
        verdict = failed(ticket.proposal.source)
        assert population.tell(ticket, replace(verdict, purpose=Purpose.CONFIRM)) == []
        second = population.best().candidate
        assert second != first
        ticket = population.recorded(second)
        population.tell(ticket, replace(passed(ticket.proposal.source, rng), purpose=Purpose.CONFIRM))
        assert population.champion().candidate == second
        digest = population.digest()
    with opened() as population:
        assert population.digest() == digest
        assert population.champion().candidate == second
        assert population.best().evaluation.purpose is Purpose.SCORE


def test_an_island_that_was_emptied_is_not_asked(opened):
    settings = PopulationSettings(islands=2, open_islands_after=5, migrate_every=10**6)
    with opened(settings=settings) as population:
        search(population, 12, random.Random(11))
        archives = population._board.islands.archives
        assert len(archives) == 2
        for one in {contender.candidate for _, contender in archives[1].contenders()}:
            ticket = population.recorded(one)
            population.tell(ticket, replace(failed(ticket.proposal.source), purpose=Purpose.CONFIRM))
        assert not archives[1].cells
        keep = {contender.candidate for _, contender in archives[0].contenders()}
        assert keep
        assert {population.ask().parent.candidate for _ in range(20)} <= keep


def test_counters_survive_a_resume(opened):
    rng = random.Random(8)
    with opened() as population:
        search(population, 50, rng)
        before = population.counters()
    with opened() as population:
        after = population.counters()
    assert replace(after, wall_s=0.0, dollars=0.0) == replace(before, wall_s=0.0, dollars=0.0)
    assert after.dollars == pytest.approx(before.dollars)
    assert after.charged == sum(before.evaluations.values()) > 50
    assert 0 < after.wall_s <= before.wall_s + 1


def test_what_failed_is_shown_to_the_next(opened):
    with opened() as population:
        search(population, 0, random.Random(9))
        brief = population.ask()
        proposal = Proposal(brief.parent.source, "mtmc", STRATEGIES[1], probes=3)
        population.fail(brief, "mtmc", "no edit applied", proposal)
        brief = population.ask()
        rejected = population.record(brief, Proposal(Source("# wrong"), "mtmc", STRATEGIES[2]))
        population.tell(rejected, failed(Source("# wrong")))
        brief = population.ask()
        assert [(one.strategy, one.status) for one in brief.tried] == [
            (STRATEGIES[2], Status.WRONG),
            (STRATEGIES[1], None),
        ]
        assert [one.evaluation.reason for one in brief.inspirations] == [failed(Source("# wrong")).reason]
        assert population.counters().evaluations[Purpose.PROBE] == 3


def test_a_verdict_on_another_source_or_task_is_refused(opened):
    with opened() as population:
        seed = population.plant(Source("# seed"))
        with pytest.raises(ValueError, match="another source"):
            population.tell(seed, failed(Source("# other")))
        with pytest.raises(ValueError, match="holds task"):
            population.tell(seed, replace(failed(Source("# seed")), task="other"))


def test_a_failing_write_leaves_nothing_behind(opened):
    rng = random.Random(10)
    with opened() as population:
        search(population, 10, rng)
        brief = population.ask()
        recorded = population.record(brief, propose(brief, rng))
        before = (population.digest(), population.counters().evaluations)
        broken = replace(passed(recorded.proposal.source, rng), knobs=(("BLOCK", object()),))
        with pytest.raises(TypeError):
            population.tell(recorded, broken)
        assert (population.digest(), population.counters().evaluations) == before
        assert [one.candidate for one in population.pending()] == [recorded.candidate]


def test_another_task_is_refused(opened):
    with opened():
        pass
    with pytest.raises(PopulationError, match="holds a search on task softmax"):
        opened(task_identity="edited since")


def test_create_and_missing(opened, tmp_path):
    with pytest.raises(PopulationError, match="no population"):
        opened(create=False)
    with opened(create=True):
        pass
    with pytest.raises(PopulationError, match="resume"):
        opened(create=True)
    (tmp_path / "text.db").write_text("not a database, but long enough to look at " * 100)
    with pytest.raises(PopulationError, match="not a population"):
        open_population(tmp_path / "text.db", task=CARD, task_identity=TASK, environment=MODELED, seed=1)


def test_eight_threads(opened):
    """The engine's use: all acts from many threads; nothing lost, and replay equals what they left."""
    errors = []
    with opened(settings=PopulationSettings(open_islands_after=50, migrate_every=10)) as population:
        search(population, 0, random.Random(0))

        def work(number):
            try:
                search(population, 40, random.Random(number))
            except BaseException as error:  # noqa: BLE001 - handed to the main thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        counters, digest = population.counters(), population.digest()
        credits = list(population.credits())
        assert counters.attempts == 320
        assert counters.candidates + counters.failures == 321
        assert len(population._board.islands.archives) == 3
    with opened() as population:
        assert population.digest() == digest
        assert population.pending() == []
        assert list(population.credits()) == credits
