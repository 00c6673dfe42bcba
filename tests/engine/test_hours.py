"""A session keeps to the time that was asked for: a slow judge on a clock of its own, and a real one that hangs."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from evo_kernel.budget import Budget, Ledger
from evo_kernel.deadline import Deadline, duration_text
from evo_kernel.engine import Engine, EngineSettings, RunSummary
from evo_kernel.engine.time_budget import TimeBudget
from evo_kernel.errors import CutShort
from evo_kernel.types import Evaluation, Purpose, Source, Status
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
)

STEP_S = 1.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class SlowJudge(ScriptedJudge):
    """Takes time on the clock, second by second; tunes for half of it, which may be left out."""

    def __init__(self, clock: Clock, score_s: float, confirm_s: float) -> None:
        super().__init__()
        self.clock, self.needs = clock, {Purpose.SCORE: score_s, Purpose.CONFIRM: confirm_s}
        self.tuned: list[bool] = []
        self.during = lambda purpose: None  # called at every step

    def evaluate(
        self,
        source: Source,
        purpose: Purpose,
        remeasure: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        assert deadline is not None
        began, needs_s = self.clock(), self.needs[purpose]
        while self.clock() - began < needs_s:
            self.during(purpose)
            deadline.check()
            if deadline.over and purpose is Purpose.SCORE and self.clock() - began >= needs_s / 2:
                break
            self.clock.now += STEP_S
        self.tuned.append(self.clock() - began >= needs_s)
        return replace(
            super().evaluate(source, purpose, remeasure, against, deadline, effort), wall_s=self.clock() - began
        )


def opened(path: Path) -> LineagePopulation:
    found = open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=7)
    found.plant(FIRST)
    return found


def session(
    population: LineagePopulation, judge: ScriptedJudge, clock: Clock, left_s: float, notebook=None
) -> RunSummary:
    ledger = Ledger(Budget(hours=left_s / 3600), clock=clock)
    return Engine(population, ScriptedOperator(), judge, ledger, EngineSettings(), notebook or Notebook()).run()


@pytest.mark.parametrize("asked_s", [40.0, 144.0, 600.0])
@pytest.mark.parametrize(("score_s", "confirm_s"), [(3.0, 9.0), (8.0, 30.0), (17.0, 48.0), (2.0, 500.0), (40.0, 90.0)])
def test_hours_hold_whatever_verdicts_and_confirmation_take(
    tmp_path: Path, asked_s: float, score_s: float, confirm_s: float
) -> None:
    clock = Clock()
    with opened(tmp_path / "h.db") as population:
        ended = session(population, SlowJudge(clock, score_s, confirm_s), clock, asked_s)
        took_s = clock() - Clock.now
        assert took_s <= asked_s + max(0.1 * asked_s, 15.0)
        assert ended.out_of_time and ended.why.startswith(f"the budget of {duration_text(asked_s)} is spent")
        assert ended.cause == "budget", "nobody interrupted it"
        assert ended.unconfirmed == (population.champion() is None) == population.confirmation_due()
        if confirm_s <= 3.0 * score_s <= asked_s / 2:  # what was to be expected
            assert population.champion() is not None
            assert ended.confirming_s == pytest.approx(confirm_s, abs=STEP_S)
            assert took_s >= asked_s - 3 * score_s - score_s, "the search had the rest"


def test_a_first_verdict_has_the_time_of_a_confirmation_too(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path / "h.db") as population:
        ended = session(population, SlowJudge(clock, 24.0, 30.0), clock, 15.0)
        assert population.best() is not None and ended.unconfirmed
        assert clock() - Clock.now <= 15.0 + 15.0


@pytest.mark.parametrize(("asked_s", "score_s", "rounds"), [(60.0, 5.0, 2), (600.0, 20.0, 2), (45.0, 10.0, 1)])
def test_a_confirmation_that_takes_less_than_was_kept_leaves_the_rest_to_the_search(
    tmp_path: Path, asked_s: float, score_s: float, rounds: int
) -> None:
    clock = Clock()
    judge = SlowJudge(clock, score_s, 4.0)
    with opened(tmp_path / "h.db") as population:
        ended = session(population, judge, clock, asked_s)
        purposes = [asked[1] for asked in judge.asked]
        assert purposes.count(Purpose.CONFIRM) == rounds and purposes[-1] is Purpose.CONFIRM
        assert asked_s - score_s - 2 * STEP_S <= clock() - Clock.now <= asked_s + 15.0
        best, champion = population.best(), population.champion()
        assert best and champion and champion.candidate == best.candidate and not ended.unconfirmed


def test_what_did_not_fit_is_confirmed_first_by_the_next_session(tmp_path: Path) -> None:
    clock, notebook = Clock(), Notebook()
    judge = SlowJudge(clock, 4.0, 200.0)
    with opened(tmp_path / "h.db") as population:
        ended = session(population, judge, clock, 90.0)
        assert ended.unconfirmed and population.champion() is None
    with opened(tmp_path / "h.db") as population:
        judge.asked.clear()
        ended = session(population, judge, clock, 0.0, notebook)  # no time is left: it is asked for by going on
        assert judge.asked[0][1] is Purpose.CONFIRM and not ended.unconfirmed
        assert population.champion() is not None
        told = next(line for line in notebook.lines if line.startswith(("confirming", "judged")))
        assert told.startswith("confirming")
    with opened(tmp_path / "h.db") as population:
        judge.asked.clear()
        session(population, judge, clock, 30.0)
        assert judge.asked[0][1] is Purpose.SCORE, "once is enough"


def test_what_a_confirmation_took_is_kept_for_the_next() -> None:
    clock = Clock()
    assert TimeBudget(math.inf, None, clock).kept_s == 0.0
    hours = TimeBudget(300.0, 45.0, clock)
    hours.took(2.0, confirming=False)
    assert hours.kept_s == 45.0
    clock.now += 254.0
    assert not hours.search.over
    clock.now += 1.0
    assert hours.search.over and hours.confirmation_fits()
    clock.now += 21.0
    assert not hours.confirmation_fits()


def test_an_interrupt_ends_tuning_and_keeps_the_verdict(tmp_path: Path) -> None:
    clock = Clock()
    judge = SlowJudge(clock, 100.0, 5.0)
    with opened(tmp_path / "h.db") as population:
        engine = Engine(population, ScriptedOperator(), judge, Ledger(Budget(), clock=clock), EngineSettings())
        judge.during = lambda purpose: engine.stop("stopped by SIGTERM") if clock() - Clock.now >= 60.0 else None
        ended = engine.run()
        assert (ended.cause, ended.why) == ("interrupted", "stopped by SIGTERM")
        assert judge.tuned == [False] and not population.pending()
        assert clock() - Clock.now <= 61.0


def test_an_interrupt_leaves_what_has_no_verdict_pending(tmp_path: Path) -> None:
    clock = Clock()
    judge = SlowJudge(clock, 100.0, 5.0)
    with opened(tmp_path / "h.db") as population:
        engine = Engine(population, ScriptedOperator(), judge, Ledger(Budget(), clock=clock), EngineSettings())
        judge.during = lambda purpose: engine.stop("stopped by SIGTERM") if clock() - Clock.now >= 20.0 else None
        ended = engine.run()
        assert ended.cause == "interrupted" and ended.statuses == {}
        assert [one.candidate for one in population.pending()] == [1]
        assert clock() - Clock.now <= 20.0 + 10.0 + STEP_S


def test_an_interrupt_cuts_a_confirmation(tmp_path: Path) -> None:
    clock = Clock()
    judge = SlowJudge(clock, 5.0, 300.0)
    with opened(tmp_path / "h.db") as population:
        ledger = Ledger(Budget(evaluations=4), clock=clock)
        engine = Engine(population, ScriptedOperator(), judge, ledger, EngineSettings())
        judge.during = lambda purpose: engine.stop("stopped by SIGTERM") if purpose is Purpose.CONFIRM else None
        ended = engine.run()
        assert ended.cause == "interrupted" and ended.unconfirmed
        assert population.confirmation_due() and not population.pending()
        assert clock() - Clock.now <= 4 * 5.0 + 10.0 + 2 * STEP_S


@pytest.mark.parametrize("hangs", [Purpose.SCORE, Purpose.CONFIRM])
def test_a_judge_that_hangs_is_not_waited_for(tmp_path: Path, hangs: Purpose) -> None:
    """A compiler, or a kernel that is executed on the CPU, looks at no deadline."""
    begun, release = threading.Event(), threading.Event()

    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        if purpose is hangs and source != FIRST:
            begun.set()
            release.wait(30)
        return scored(source, purpose)

    judge, ended = ScriptedJudge(answer), list[RunSummary]()
    with opened(tmp_path / "h.db") as population:
        settings = EngineSettings(width=2, interrupt_s=0.3)
        engine = Engine(population, ScriptedOperator(), judge, Ledger(Budget(evaluations=6)), settings)
        runner = threading.Thread(target=lambda: ended.append(engine.run()))
        runner.start()
        assert begun.wait(10)
        began = time.monotonic()
        engine.stop("stopped by SIGTERM")
        runner.join(10)
        assert time.monotonic() - began < 2.0
        assert ended[0].cause == "interrupted" and judge.closed.is_set()
        assert bool(population.pending()) == (hangs is Purpose.SCORE)
    release.set()


def test_a_probe_is_cut_as_well(tmp_path: Path) -> None:
    clock = Clock()
    judge = SlowJudge(clock, 5.0, 5.0)
    judge.needs[Purpose.PROBE] = 1000.0
    operator = ScriptedOperator(before=lambda brief, probe: probe(Source("time_us = 1.0\n")) and None)
    with opened(tmp_path / "h.db") as population:
        engine = Engine(population, operator, judge, Ledger(Budget(), clock=clock), EngineSettings(), Notebook())
        judge.during = lambda purpose: engine.stop("stopped by SIGTERM") if purpose is Purpose.PROBE else None
        assert engine.run().statuses == {Status.PASSED: 1}
        assert clock() - Clock.now <= 5.0 + 10.0 + STEP_S


def test_a_deadline_is_only_brought_forward() -> None:
    clock = Clock()
    deadline = Deadline(clock() + 5, 3, clock)
    assert not deadline.over and deadline.left_s == 5.0
    deadline.bring_forward(100.0)
    assert deadline.over and not deadline.passed
    clock.now += 8.0
    with pytest.raises(CutShort):
        deadline.check()
