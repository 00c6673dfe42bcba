"""A search that knows nothing more: what it does with the time that is left, what it writes down, and how it ends."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from evo_kernel.budget import Budget, Ledger
from evo_kernel.deadline import Deadline
from evo_kernel.engine import Engine, EngineSettings, RunSummary
from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Evaluation, KernelFeatures, PlanFeatures, Probe, Proposal, Purpose, Source
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

MEASURED = replace(ENVIRONMENT, kind="measured", device="a GPU")


class Forms(ScriptedOperator):
    """A kernel has `forms` children, of two kinds, down to the second generation; then it knows nothing more."""

    def __init__(self, forms: int = 3) -> None:
        super().__init__()
        self.forms, self.made, self.asked = forms, dict[int, int](), list[tuple[int, tuple[int, ...]]]()

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        parent = brief.parent.candidate
        self.asked.append((parent, tuple(one.candidate for one in brief.inspirations)))
        number = self.made.get(parent, 0)
        if number == self.forms or brief.parent.generation >= 2:
            raise OperatorFailed("everything was tried", operator=self.name, exhausted=True)
        self.made[parent] = number + 1
        slower = time_of(brief.parent.source) * (1.0 + 0.1 * number)
        return Proposal(Source(f"time_us = {slower!r}  # {parent}.{number}\n"), self.name)


class Cells(ScriptedJudge):
    """Kernels of two kinds by their last form; every effort is noted."""

    def __init__(self, environment=ENVIRONMENT) -> None:
        super().__init__(environment=environment)
        self.efforts: list[tuple[Purpose, int, bool]] = []

    def evaluate(
        self,
        source: Source,
        purpose: Purpose,
        remeasure: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        self.asked.append((source.sha256, purpose))
        self.efforts.append((purpose, effort, remeasure))
        found = replace(scored(source, purpose), environment=self.environment)
        (measured,) = found.measurements
        path = "tma" if source.text.rstrip().endswith(".1") else "load"
        kernel = KernelFeatures("k", (1, 1, 1), 4, 1, 32, 0, 0, "none", path, "plain", {"fma": 1}, 1.0)
        measured = replace(measured, features=PlanFeatures(1, 0, (kernel,)))
        return replace(found, measurements=(measured,))


def opened(path: Path, environment=ENVIRONMENT) -> LineagePopulation:
    population = open_population(path, task=CARD, task_identity=TASK, environment=environment, seed=7)
    population.plant(FIRST)
    return population


def searched(population: LineagePopulation, operator, judge, width: int = 1) -> RunSummary:
    ledger = Ledger(Budget(evaluations=500))
    return Engine(population, operator, judge, ledger, EngineSettings(width=width), Notebook()).run()


@pytest.mark.parametrize("width", [1, 4])
def test_all_forms_are_tried_then_elites_are_tuned_deeper_then_it_says_what_would_help(tmp_path, width) -> None:
    operator, judge = Forms(), Cells()
    with opened(tmp_path / "d.db") as population:
        ended = searched(population, operator, judge, width)
        made = sum(operator.made.values())
        assert made == 3 + 9 and population.counters().candidates == 13, "two generations, every form"
        tried = {parent for parent, _ in operator.asked}
        assert tried == set(range(1, 14)), "every candidate was a parent, contender or not"
        elites = {one.candidate for one in population.elites()}
        assert len(elites) == 2
        assert {(a, (b,)) for a in elites for b in elites if a != b} <= set(operator.asked), "elites side by side"
        assert [effort for purpose, effort, _ in judge.efforts if effort > 1] == [4, 4]
        assert not any(remeasure for _, _, remeasure in judge.efforts[1:]), "modeled times are exact"
        assert ended.cause == "barren" and "nothing is left to try" in ended.why and "--model" in ended.why
        assert population.champion() is not None


def test_elites_are_measured_again_where_times_are_measured(tmp_path) -> None:
    judge = Cells(MEASURED)
    with opened(tmp_path / "d.db", MEASURED) as population:
        ended = searched(population, Forms(), judge)
    deeper = [number for number, (_, effort, _) in enumerate(judge.efforts) if effort > 1]
    again = [number for number, (_, _, remeasure) in enumerate(judge.efforts) if remeasure]
    assert len(deeper) == len(again) == 2 and max(deeper) < min(again)
    assert "2 measured again" in ended.why


def test_attempts_that_leave_nothing_are_one_event(tmp_path) -> None:
    operator, path = Forms(), tmp_path / "d.db"
    with opened(path) as population:
        searched(population, operator, Cells())
        live, digest = population.counters(), population.digest()
    failed = len(operator.asked) - sum(operator.made.values())
    assert live.failures == failed > 13 and live.attempts == len(operator.asked)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT COUNT(*) FROM failures").fetchone() == (0,)
        assert connection.execute("SELECT COUNT(*) FROM attempts").fetchone() == (13,)  # those that left a candidate
        events = connection.execute("SELECT data FROM events WHERE kind = 'no proposal'").fetchall()
        assert len(events) < 13 and all("everything was tried" in data for (data,) in events)
    with opened(path) as population:
        again = population.counters()
        assert (again.attempts, again.failures, population.digest()) == (live.attempts, live.failures, digest)
        ended = searched(population, Forms(0), Cells())  # it finds out anew, in no time, and writes nothing
        assert ended.cause == "barren" and population.counters().candidates == live.candidates


def test_an_attempt_that_leaves_something_has_its_row(tmp_path) -> None:
    with opened(tmp_path / "d.db") as population:
        first, second = population.ask(), population.ask()
        population.fail(first, "mtmc", "nothing came to mind")
        population.record(second, Proposal(Source("time_us = 9.0\n"), "mtmc"))
        third = population.ask()
        population.diary.append(third.attempt, "opening", {})
        with sqlite3.connect(tmp_path / "d.db") as connection:
            rows = connection.execute("SELECT id FROM attempts WHERE parent IS NOT NULL ORDER BY id").fetchall()
        assert [row for (row,) in rows] == [second.attempt, third.attempt]
        cut_off = population.ask()
    with sqlite3.connect(tmp_path / "d.db") as connection:
        assert connection.execute("SELECT MAX(id) FROM attempts").fetchone() == (cut_off.attempt,)
