"""The real engine on the real population, with a scripted operator and judge."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evo_kernel.budget import Budget, Ledger, Spent
from evo_kernel.deadline import Deadline
from evo_kernel.engine import Engine, EngineSettings, RunSummary
from evo_kernel.errors import InfraError, OperatorFailed
from evo_kernel.types import (
    Brief,
    Call,
    CaseKind,
    Evaluation,
    PairedComparison,
    Probe,
    Proposal,
    Purpose,
    Rival,
    Source,
    Status,
    promotion,
)
from populations.population import LineagePopulation, open_population
from tests.support.scripted import (
    CARD,
    ENVIRONMENT,
    FIRST,
    TASK,
    Notebook,
    ScriptedJudge,
    ScriptedOperator,
    scored,
    time_of,
)

QUICK = EngineSettings(infra_wait_s=0.0)


def reopen(path: Path) -> LineagePopulation:
    return open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=7)


@pytest.fixture
def population(tmp_path: Path) -> Iterator[LineagePopulation]:
    with reopen(tmp_path / "scripted.db") as opened:
        opened.plant(FIRST)
        yield opened


def search(
    population, operator=None, judge=None, budget=Budget(evaluations=20), settings=QUICK, notebook=None
) -> RunSummary:
    counters = population.counters()
    ledger = Ledger(budget, Spent(counters.charged, 0.0, counters.dollars, counters.tokens, counters.gpu_s))
    operator, judge = operator or ScriptedOperator(), judge or ScriptedJudge()
    return Engine(population, operator, judge, ledger, settings, notebook or Notebook()).run()


def wrong(source: Source, purpose: Purpose) -> Evaluation:
    reason = "row 3 differs"
    return Evaluation(source.sha256, TASK, purpose, ENVIRONMENT, Status.WRONG, reason, charged={str(purpose): 1})


def test_a_run_ends_with_its_budget_and_a_confirmed_best(population) -> None:
    judge = ScriptedJudge()
    ended = search(population, judge=judge)
    assert (ended.cause, ended.why) == ("budget", "the budget of 20 evaluations is spent")
    assert ended.statuses == {"passed": 20}
    assert ended.attempts == 19  # the first kernel costs one
    assert judge.asked[-1][1] is Purpose.CONFIRM
    assert ended.best is not None and ended.best.candidate == population.champion().candidate
    assert ended.best.evaluation.score > 1.0
    assert population.counters().evaluations == {"score": 20, "confirm": 1}
    assert ended.spent.evaluations == population.counters().charged == 21


def test_width_one_and_a_seed_are_deterministic(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        with reopen(tmp_path / f"{name}.db") as opened:
            opened.plant(FIRST)
            search(opened, budget=Budget(evaluations=40))
            digests.append(opened.digest())
    assert digests[0] == digests[1]


def test_a_refuted_best_makes_room_for_the_next(population) -> None:
    refused: list[str] = []

    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        if purpose is Purpose.CONFIRM and len(refused) < 2:
            refused.append(source.sha256)
            return wrong(source, purpose)
        return scored(source, purpose)

    ended = search(population, judge=ScriptedJudge(answer))
    assert len(refused) == 2
    assert ended.best is not None and ended.best.source.sha256 not in refused
    assert population.champion().candidate == ended.best.candidate


def compared(source: Source, against: Source | None, first: float, champion: float) -> Evaluation:
    """A confirmation in which pairs say how much faster it is than the first kernel, and than the champion."""
    found = [PairedComparison("large", CaseKind.SEARCH, Rival.FIRST, "first", first, first, first, 0, "-", 2.0)]
    if against is not None:
        rest = (champion, champion, champion, 0, "-")
        found.append(PairedComparison("hidden", CaseKind.CONFIRM, Rival.CHAMPION, against.sha256[:16], *rest))
    return replace(scored(source, Purpose.CONFIRM), comparisons=tuple(found))


@pytest.mark.parametrize(("ratio", "stands"), [(1.2, True), (0.995, True), (0.43, False)])
def test_what_is_slower_than_the_first_kernel_on_hidden_cases_is_no_champion(ratio, stands) -> None:
    confirmation = compared(FIRST, None, 2.0, 1.0)
    hidden = PairedComparison("hidden", CaseKind.CONFIRM, Rival.FIRST, "first", ratio, ratio, ratio, 0, "-")
    confirmation = replace(confirmation, comparisons=(*confirmation.comparisons, hidden))
    reason = promotion.refutation(confirmation, 7)
    assert (reason == "") == stands == promotion.stands(confirmation).passed
    assert stands or "slower than the first kernel on the confirm cases: 0.430x" in reason
    assert promotion.refutation(confirmation, promotion.FIRST) == ""


def test_a_gain_that_pairs_do_not_show_makes_no_champion(population) -> None:
    refused: list[str] = []

    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        if purpose is not Purpose.CONFIRM:
            return scored(source, purpose)
        refused.extend([source.sha256] if len(refused) < 2 else [])
        return compared(source, None, 1.0 if source.sha256 in refused else 1.5, 1.0)

    notebook = Notebook()
    search(population, judge=ScriptedJudge(answer), notebook=notebook)
    champion = population.champion()
    assert len(refused) == 2 and champion is not None and champion.source.sha256 not in refused
    assert sum(" confirm refuted " in line for line in notebook.lines) == 2


def test_where_no_gain_stands_the_first_kernel_is_tried_last(population) -> None:
    """Kernels that memory bounds may all be equal: the first is right all the same, and is confirmed."""

    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        if purpose is not Purpose.CONFIRM:
            return scored(source, purpose)
        found = compared(source, None, 1.0, 1.0)
        return replace(found, comparisons=tuple(replace(one, low=0.99, high=1.01) for one in found.comparisons))

    notebook = Notebook()
    search(population, judge=ScriptedJudge(answer), notebook=notebook)
    champion = population.champion()
    assert champion is not None and champion.candidate == 1
    assert sum(" confirm refuted " in line for line in notebook.lines) == QUICK.confirmations - 1
    search(population, judge=ScriptedJudge(answer), budget=Budget(evaluations=30))
    assert population.champion().candidate == 1


def test_the_first_kernel_with_knobs_that_make_it_slower_is_refuted(population) -> None:
    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        return scored(source, purpose) if purpose is not Purpose.CONFIRM else compared(source, None, 0.9, 1.0)

    search(population, judge=ScriptedJudge(answer))
    assert population.champion() is None


def test_a_champion_is_replaced_only_by_what_pairs_do_not_show_slower(population) -> None:
    judge = ScriptedJudge()
    search(population, judge=judge)
    first = population.champion()
    assert first is not None and judge.against[-1] is None

    for ratio in (0.97, 1.03):
        spent = population.counters().charged

        def answer(source: Source, purpose: Purpose, number: int, ratio: float = ratio) -> Evaluation:
            if purpose is not Purpose.CONFIRM:
                return scored(source, purpose)
            return compared(source, first.source, 1.5, ratio)

        judge = ScriptedJudge(answer)
        search(population, judge=judge, budget=Budget(evaluations=spent + 40))
        assert judge.asked[-1][1] is Purpose.CONFIRM and judge.against[-1] == first.source
        assert (population.champion().candidate == first.candidate) is (ratio < 1.0)


def test_what_is_confirmed_is_the_tuned_kernel(population) -> None:
    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        evaluation = scored(source, purpose)
        return replace(evaluation, knobs=(("BLOCK", 64),)) if purpose is Purpose.SCORE else evaluation

    class Blocked(ScriptedOperator):
        def propose(self, brief: Brief, probe: Probe) -> Proposal:
            proposal = super().propose(brief, probe)
            return replace(proposal, source=Source(proposal.source.text + "BLOCK = 32\n"))

    judge = ScriptedJudge(answer)
    ended = search(population, Blocked(), judge, Budget(evaluations=5))
    assert ended.best is not None
    proposed = population.recorded(ended.best.candidate).proposal.source
    assert "BLOCK = 32" in proposed.text and "BLOCK = 64" in ended.best.source.text
    assert judge.asked[-1] == (ended.best.source.sha256, Purpose.CONFIRM)
    assert population.champion().candidate == ended.best.candidate


def test_what_is_pending_is_judged_first(tmp_path: Path) -> None:
    path = tmp_path / "scripted.db"
    with reopen(path) as opened:
        opened.plant(FIRST)
        search(opened, budget=Budget(evaluations=3))
        brief = opened.ask()
        lost = opened.record(brief, ScriptedOperator().propose(brief, lambda source: scored(source, Purpose.PROBE)))
    with reopen(path) as opened:
        judge, operator = ScriptedJudge(), ScriptedOperator()
        before = opened.counters().charged
        ended = search(opened, operator, judge, Budget(evaluations=before + 3))
        assert judge.asked[0] == (lost.proposal.source.sha256, Purpose.SCORE)
        assert ended.spent.evaluations == before + 4  # three, and the confirmation
        assert len(operator.learnt) == len(list(opened.credits()))  # what was learnt before counts once


def test_a_resume_counts_nothing_twice(tmp_path: Path) -> None:
    path, judge = tmp_path / "scripted.db", ScriptedJudge()
    for limit in (5, 10, 15):
        with reopen(path) as opened:
            opened.plant(FIRST)
            search(opened, judge=judge, budget=Budget(evaluations=limit))
            assert opened.counters().charged == len(judge.asked)


def test_an_operators_failure_is_recorded_with_its_cost(population) -> None:
    def before(brief: Brief, probe: Probe) -> None:
        probe(Source("time_us = 50.0\n"))
        if brief.attempt % 2:
            raise OperatorFailed("no idea", operator="thinker", calls=(Call("model", 10, 5, dollars=0.5),))

    ended = search(population, ScriptedOperator(before=before), budget=Budget(dollars=2.0))
    assert ended.why == "the budget of 2 dollars is spent"
    assert ended.failures == {"no idea": 4}
    counters = population.counters()
    assert (counters.failures, counters.dollars, counters.tokens) == (4, 2.0, 60)
    assert counters.evaluations["probe"] == ended.attempts  # every probe was charged once, failed attempts included
    assert ended.spent.evaluations == counters.charged


def test_nothing_new_to_try_ends_the_run(population) -> None:
    def before(brief: Brief, probe: Probe) -> None:
        raise OperatorFailed("everything that is offered was tried")

    ended = search(population, ScriptedOperator(before=before), settings=EngineSettings(barren=7))
    assert ended.cause == "barren"
    assert ended.attempts == 7
    assert "everything that is offered was tried" in ended.why


def test_cache_hits_alone_end_the_run(population) -> None:
    judge = ScriptedJudge(lambda source, purpose, number: scored(source, purpose, charged={}))
    ended = search(population, judge=judge, settings=EngineSettings(barren=9))
    assert (ended.cause, ended.attempts) == ("barren", 9)


def test_an_attempt_that_books_its_own_evaluations_is_not_barren(population) -> None:
    ledger = Ledger(Budget())

    def before(brief: Brief, probe: Probe) -> None:
        if brief.attempt <= 12:
            ledger.charge(Spent(evaluations=1))  # as an agent's tools do
        raise OperatorFailed("no commit")

    settings = EngineSettings(barren=5)
    ended = Engine(population, ScriptedOperator(before=before), ScriptedJudge(), ledger, settings, Notebook()).run()
    assert ended.cause == "barren" and ended.attempts == 11 + 5  # the first attempt is number 2


def test_the_machines_failure_is_retried(population) -> None:
    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        if number % 3 != 2:
            raise InfraError("the child was lost")
        return scored(source, purpose)

    notebook = Notebook()
    ended = search(population, judge=ScriptedJudge(answer), budget=Budget(evaluations=4), notebook=notebook)
    assert ended.statuses == {"passed": 4}
    assert sum(line.startswith("trouble") for line in notebook.lines) >= 8


def test_a_broken_machine_stops_the_run_and_scores_nothing(population) -> None:
    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        if number >= 4:
            raise InfraError("no space left on device")
        return scored(source, purpose)

    ended = search(population, judge=ScriptedJudge(answer))
    assert ended.cause == "machine"
    assert "no space left on device" in ended.why
    assert ended.statuses == {"passed": 4, "infra_error": 3}
    assert len(population.pending()) == 3  # to be judged on resume
    assert population.counters().charged == 4


def test_a_machine_that_fails_an_operator_at_work_costs_the_attempt_and_not_the_run(population) -> None:
    """A full disk under a workspace, a judge that is lost in a probe."""

    def before(brief: Brief, probe: Probe) -> None:
        if brief.attempt % 3 == 0:
            raise InfraError("no space left on device")
        probe(brief.parent.source)

    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        if purpose is Purpose.PROBE and number % 7 == 0:
            raise InfraError("the child was lost")
        return scored(source, purpose)

    notebook = Notebook()
    ended = search(population, ScriptedOperator(before=before), ScriptedJudge(answer), notebook=notebook)
    assert ended.cause == "budget" and not population.pending()
    assert {"the machine failed: no space left on device", "the machine failed: the child was lost"} == set(
        ended.failures
    )
    told = [line for line in notebook.lines if line.startswith("failed")]
    assert len(told) == sum(ended.failures.values()) >= 4
    assert population.counters().charged >= 20  # probes of failed attempts, too


def test_a_machine_that_fails_every_attempt_ends_the_run(population) -> None:
    def before(brief: Brief, probe: Probe) -> None:
        raise InfraError("no space left on device")

    ended = search(population, ScriptedOperator(before=before))
    assert (ended.cause, ended.attempts) == ("machine", EngineSettings().infra_stop)
    assert "3 times in a row: the machine failed: no space left on device" in ended.why


def test_a_bug_that_some_parents_meet_fails_their_attempts(population) -> None:
    def before(brief: Brief, probe: Probe) -> None:
        if brief.attempt % 3:
            raise RecursionError("nested without end")

    notebook = Notebook()
    ended = search(population, ScriptedOperator(before=before), notebook=notebook)
    assert ended.cause == "budget"
    assert set(ended.failures) == {"a bug of the operator: RecursionError: nested without end"}
    assert any("test_engine.py" in line and "in before" in line for line in notebook.lines)  # the traceback is told


@pytest.mark.parametrize("width", [1, 4])
def test_a_bug_that_every_attempt_meets_stops_every_thread_and_is_raised(population, width: int) -> None:
    def before(brief: Brief, probe: Probe) -> None:
        if brief.attempt > 5:
            raise ZeroDivisionError("ours")

    earlier = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError, match="ours"):
        search(population, ScriptedOperator(before=before), settings=replace(QUICK, width=width))
    until = time.monotonic() + 10  # `stop` closes the ledger in a thread of its own, which nobody waits for
    while (left := set(threading.enumerate()) - earlier) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left


def test_many_in_flight_hardly_overshoot(population) -> None:
    ended = search(
        population, ScriptedOperator(wait_s=0.002), ScriptedJudge(wait_s=0.002), Budget(evaluations=100),
        replace(QUICK, width=16),
    )  # fmt: skip
    assert ended.spent.evaluations == 101  # the confirmation comes on top
    assert population.counters().charged == 101


def test_stop_finishes_what_is_in_flight(population) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def before(brief: Brief, probe: Probe) -> None:
        begun.set()
        go_on.wait(10)

    ledger, ended = Ledger(Budget()), []
    engine = Engine(population, ScriptedOperator(before=before), ScriptedJudge(), ledger, replace(QUICK, width=3))
    runner = threading.Thread(target=lambda: ended.append(engine.run()))
    runner.start()
    assert begun.wait(10)
    engine.stop("stopped by SIGINT")
    go_on.set()
    runner.join(10)
    assert ended[0].why == "stopped by SIGINT"
    assert ended[0].cause == "interrupted"
    assert ended[0].attempts <= 3
    assert population.counters().candidates == ended[0].attempts + 1
    assert not population.pending()


def test_abort_waits_for_nobody(population) -> None:
    begun, release = threading.Event(), threading.Event()

    def before(brief: Brief, probe: Probe) -> None:
        begun.set()
        release.wait(30)

    engine = Engine(population, ScriptedOperator(before=before), ScriptedJudge(), Ledger(Budget()), QUICK)
    ended: list[RunSummary] = []
    runner = threading.Thread(target=lambda: ended.append(engine.run()))
    runner.start()
    assert begun.wait(10)
    engine.abort("stopped by SIGTERM")
    runner.join(5)
    release.set()
    assert ended[0].why == "stopped by SIGTERM"


class OneChildEach(ScriptedOperator):
    """Every candidate has one child in it, a little faster: the next can only be made once the last was judged."""

    def __init__(self) -> None:
        super().__init__()
        self._lock, self._done = threading.Lock(), set()

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        with self._lock:
            if brief.parent.candidate in self._done:
                raise OperatorFailed("everything was tried", operator=self.name, exhausted=True)
            self._done.add(brief.parent.candidate)
        faster = Source(f"time_us = {time_of(brief.parent.source) * 0.97!r}  # attempt {brief.attempt}\n")
        return Proposal(faster, self.name)


def test_a_search_waits_for_verdicts_under_way_before_it_calls_itself_barren(population) -> None:
    judge = ScriptedJudge(wait_s=0.15)
    ended = search(population, OneChildEach(), judge, Budget(evaluations=9), EngineSettings(width=8, barren=30))
    assert (ended.cause, ended.statuses) == ("budget", {"passed": 8})
    assert ended.attempts < 8 * (8 + 30)  # they wait; they do not spin


class SameFirst(ScriptedOperator):
    """All who are asked at once have the same idea; who is asked later has another."""

    SHARED = Source("time_us = 50.0  # everybody's idea\n")

    def __init__(self) -> None:
        super().__init__()
        self.together, self.first = threading.Barrier(4), iter(range(4))

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        if next(self.first, None) is None:
            return super().propose(brief, probe)
        self.together.wait(5.0)
        return Proposal(self.SHARED, self.name)


class NotesFirst(ScriptedJudge):
    """`anew`: how the first kernel was asked about, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.remeasure: list[bool] = []

    def evaluate(self, source, purpose, remeasure=False, against=None, deadline=None, effort=1):
        if source == FIRST and purpose is Purpose.SCORE:
            self.remeasure.append(remeasure)
        return super().evaluate(source, purpose, remeasure, against, deadline, effort)


def test_the_first_kernel_is_tuned_beside_the_first_attempts(population) -> None:
    """Measured as it is at first, so that the others need not wait: alone, it is tuned at once."""
    judge = NotesFirst()
    search(population, judge=judge, settings=EngineSettings(width=4))
    assert judge.remeasure[:2] == [True, False]


def test_a_first_kernel_that_a_session_left_untuned_is_tuned_by_the_next(tmp_path: Path) -> None:
    """Else all gains over it would hold what its own knobs are worth."""
    path, wide = tmp_path / "scripted.db", EngineSettings(width=3)
    judge = NotesFirst()
    with reopen(path) as opened:
        opened.tell(opened.plant(FIRST), ScriptedJudge().evaluate(FIRST, Purpose.SCORE))  # and then it was killed
    for _ in range(2):  # once is enough
        with reopen(path) as opened:
            more = opened.counters().charged + 4
            search(opened, judge=judge, settings=wide, budget=Budget(evaluations=more))
    assert judge.remeasure.count(False) == 1


def test_a_kernel_is_not_judged_beside_itself(population) -> None:
    judge, notebook = ScriptedJudge(wait_s=0.2), Notebook()
    search(population, SameFirst(), judge, settings=EngineSettings(width=4), notebook=notebook)
    assert judge.asked.count((SameFirst.SHARED.sha256, Purpose.SCORE)) == 1
    assert sum("the same kernel" in line for line in notebook.lines) == 3


class OneThinks(ScriptedOperator):
    """One attempt thinks for long; the others have nothing to try, and fail at once. What it found has one child."""

    def __init__(self, useful: bool) -> None:
        super().__init__()
        self.useful, self._lock, self._thinking = useful, threading.Lock(), False

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        with self._lock:
            first, self._thinking = not self._thinking, True
        if not first:
            raise OperatorFailed("everything was tried", operator=self.name)
        time.sleep(0.5)
        if not self.useful:
            raise OperatorFailed("it came to nothing", operator=self.name)
        return super().propose(brief, probe)


@pytest.mark.parametrize("useful", [True, False])
def test_the_attempt_that_still_thinks_has_the_last_word(population, useful: bool) -> None:
    """A model takes a minute where operators without one fail in a millisecond."""
    search(population, budget=Budget(evaluations=1))  # the first kernel's verdict, which would be news
    ended = search(population, OneThinks(useful), settings=EngineSettings(width=4, barren=20))
    assert ended.cause == "barren" and ended.statuses == ({"passed": 1} if useful else {})
    rounds = 1 + useful  # what it found is news: the count begins again
    most = (20 + 4) * rounds + 3 * ended.wall_s  # each of three tries again once a second while a verdict is on its way
    assert 20 * rounds <= ended.attempts <= most, "they wait for it, and do not spin meanwhile"


MEASURED = replace(ENVIRONMENT, kind="measured", device="a GPU")


class NoisyJudge(ScriptedJudge):
    """Every kernel takes 50 µs, give or take 1 %, and says so."""

    def __init__(self) -> None:
        super().__init__(environment=MEASURED)
        self._rng, self.again = np.random.default_rng(5), []

    def evaluate(
        self,
        source: Source,
        purpose: Purpose,
        remeasure: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        found = replace(scored(source, purpose, {} if remeasure else None), environment=MEASURED)
        (measured,) = found.measurements
        us = 50.0 * float(self._rng.normal(1.0, 0.01))
        measured = replace(measured, median_us=us, low_us=us * 0.98, high_us=us * 1.02, n=5)
        if remeasure:
            self.again.append(source.sha256)
        verdict = replace(found.verdicts[0], measurement=measured)
        return replace(found, measurements=(measured,), verdicts=(verdict,), score=100.0 / us)


def test_what_only_looks_faster_is_measured_again_within_a_share_of_the_search(tmp_path) -> None:
    judge = NoisyJudge()
    opened = open_population(tmp_path / "n.db", task=CARD, task_identity=TASK, environment=MEASURED, seed=7)
    with opened as population:
        population.plant(FIRST)
        ended = search(population, judge=judge, budget=Budget(evaluations=60))
        assert 0 < len(judge.again) <= 0.2 * 60
        assert ended.statuses == {"passed": 60}  # a candidate counts once
        assert population.counters().charged == 61  # times taken again charge no evaluation


def test_a_judge_without_noise_is_asked_once(population) -> None:
    judge = ScriptedJudge()
    search(population, judge=judge)
    assert len(judge.asked) == 21


LATE = Source("time_us = 60.0\n")


class Arrives:
    """A first kernel that somebody else is making."""

    def __init__(self, population, ready=True) -> None:
        self.population, self.ready, self.asked = population, ready, threading.Event()

    def __call__(self, within_s: float):
        self.asked.set()
        if not self.ready:
            raise TimeoutError
        return self.population.plant(LATE, "compiled")


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("evaluations", [0, 6])
def test_a_first_kernel_that_comes_late_is_judged_before_anything_is_tried(population, width, evaluations) -> None:
    judge, settings = ScriptedJudge(), replace(QUICK, width=width)
    ledger = Ledger(Budget(evaluations=evaluations), Spent())
    late_root = Arrives(population)
    Engine(population, ScriptedOperator(), judge, ledger, settings, Notebook(), late_roots=(late_root,)).run()
    asked, roots = [source for source, _ in judge.asked], {FIRST.sha256, LATE.sha256}
    tried = next((place for place, source in enumerate(asked) if source not in roots), len(asked))
    assert LATE.sha256 in asked[:tried] and asked.count(LATE.sha256) >= 2  # as it is, and tuned
    assert width > 1 or asked[1:3] == [LATE.sha256] * 2  # the fastest is tuned first
    assert population.relative(2).evaluation.passed


def test_nothing_is_tuned_or_tried_beside_the_verdict_of_a_late_first_kernel(population) -> None:
    """It is often several times faster: what is tuned or tried before would be of the slower one."""
    calls: list[tuple[str, bool]] = []

    class Slow(ScriptedJudge):
        def evaluate(self, source, purpose, remeasure=False, against=None, deadline=None, effort=1):
            if source == LATE and remeasure:
                time.sleep(0.7)
            found = super().evaluate(source, purpose, remeasure, against, deadline, effort)
            calls.append((source.sha256, remeasure))
            return found

    Engine(
        population, ScriptedOperator(), Slow(), Ledger(Budget(evaluations=6), Spent()), replace(QUICK, width=2),
        Notebook(), late_roots=(Arrives(population),),
    ).run()  # fmt: skip
    assert calls[:2] == [(FIRST.sha256, True), (LATE.sha256, True)]


def test_a_run_that_waits_for_a_first_kernel_stops_at_once(population) -> None:
    late_root = Arrives(population, ready=False)
    engine = Engine(
        population, ScriptedOperator(), ScriptedJudge(), Ledger(Budget(), Spent()), replace(QUICK, width=2), Notebook(),
        late_roots=(late_root,),
    )  # fmt: skip
    threading.Thread(target=lambda: late_root.asked.wait(10.0) and engine.stop("enough")).start()
    began = time.monotonic()
    ended = engine.run()
    assert ended.cause == "interrupted" and ended.attempts == 0 and time.monotonic() - began < 5.0
