"""Profile tables for prompts: once a plan, however many ask, and within a share of the run where a GPU makes them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import pytest

from evo_kernel.app import prompt_context
from evo_kernel.app.prompt_context import FIRST_S, SHARE, Profiles
from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.spool.client import SpoolJudge
from evo_kernel.fitness.spool.folder import SpoolFolder
from evo_kernel.tasks.loading import load
from evo_kernel.types import Environment, Purpose, ScoredCandidate, Source
from tests.support.scripted import ENVIRONMENT, ScriptedJudge, scored


@dataclass
class Table:
    text: str

    def as_text(self, label: str) -> str:
        return f"{self.text}, {label}"


@dataclass
class Bench(ScriptedJudge):
    """A judge that counts its profiles; each takes `takes_s` by the test's own clock."""

    environment: Environment = ENVIRONMENT
    takes_s: float = 10.0
    now: float = 0.0
    error: Exception | None = None
    profiled: list[str] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event | None = None

    def profile(self, source, knobs, kinds, counters, case_name):
        self.entered.set()
        if self.go_on is not None:
            assert self.go_on.wait(10)
        assert not counters, "hardware counters are not for prompts"
        self.profiled.append(case_name)
        self.now += self.takes_s
        if self.error is not None:
            raise self.error
        return {case_name: Table(f"profile {len(self.profiled)}")}


def relative(number: int) -> ScoredCandidate:
    source = Source(f"time_us = {number}.0\n")
    return ScoredCandidate(number, source, 0, 0, scored(source, Purpose.SCORE))


def test_a_plan_is_profiled_once_whoever_asks() -> None:
    bench = Bench(go_on=threading.Event())
    table, found = Profiles(bench), []
    asking = [threading.Thread(target=lambda: found.append(table(relative(7)))) for _ in range(8)]
    for thread in asking:
        thread.start()
    assert bench.entered.wait(10) and bench.go_on is not None
    bench.go_on.set()
    for thread in asking:
        thread.join(10)
    assert found == ["profile 1, modeled for an H200 (sm_90)"] * 8 and bench.profiled == ["large"]
    assert table(relative(8)).startswith("profile 2")


def test_the_slowest_case_is_profiled_and_what_was_not_timed_is_not() -> None:
    bench = Bench()
    given = relative(7)
    assert given.evaluation is not None
    (one,) = given.evaluation.measurements
    slower = replace(one, case="larger", plan="another", median_us=70.0)
    Profiles(bench)(replace(given, evaluation=replace(given.evaluation, measurements=(one, slower))))
    assert bench.profiled == ["larger"]
    assert Profiles(bench)(replace(given, evaluation=None)) == "" and len(bench.profiled) == 1


def test_on_a_gpu_only_a_share_of_the_run_goes_into_profiles() -> None:
    bench = Bench(environment=replace(ENVIRONMENT, kind="measured", device="NVIDIA H200"), takes_s=1.0)
    table = Profiles(bench, clock=lambda: bench.now)
    said = [table(relative(number)) for number in range(1, 101)]
    made = sum(bool(one) for one in said)
    assert FIRST_S <= made <= FIRST_S + 3 and said[0] and not said[-1]
    assert table(relative(1)) == said[0], "what is known costs nothing"
    bench.now += 10 / SHARE
    assert table(relative(100)), "later there is time for one again"


def test_modeled_profiles_are_always_made() -> None:
    bench = Bench(takes_s=100.0)
    table = Profiles(bench, clock=lambda: bench.now)
    assert all(table(relative(number)) for number in range(1, 50)), "a replay must see what the recording saw"


def test_what_cannot_be_profiled_is_said_once_and_a_machine_that_fails_is_asked_again() -> None:
    bench = Bench(error=UserError("launch 0 of large, timeout: too slow"))
    table = Profiles(bench)
    assert table(relative(7)) == table(relative(7)) == "not known: launch 0 of large, timeout: too slow"
    assert len(bench.profiled) == 1
    bench.error = InfraError("the runner is gone")
    assert table(relative(8)) == table(relative(8)) == ""
    assert len(bench.profiled) == 3


def test_tables_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_context, "KEPT", 3)
    bench = Bench()
    table = Profiles(bench)
    for number in (1, 2, 3, 1, 4, 1):
        table(relative(number))
    assert len(bench.profiled) == 4, "the one that was asked for again stays"
    table(relative(2))
    assert len(bench.profiled) == 5


def test_a_table_from_elsewhere_is_not_waited_for_long(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(prompt_context, "ELSEWHERE_S", 0.1)
    judge = SpoolJudge(SpoolFolder(tmp_path), load("softmax"), ENVIRONMENT, JudgeSettings())
    assert Profiles(judge)(relative(7)) == ""
    assert SpoolFolder(tmp_path).carried()[0] == 1, "it was asked for"
