"""Searches whose judges are elsewhere: parked when all wait, gone on with, and judged by the real command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from evo_kernel.app import compose
from evo_kernel.app.workbench import rooms_of
from evo_kernel.budget import Budget, Ledger, Spent
from evo_kernel.engine import Engine, EngineSettings
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.spool.client import SpoolJudge
from evo_kernel.fitness.spool.folder import SpoolFolder
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import load
from evo_kernel.types import Operator, Source
from operators.avo.operator import AvoOperator
from operators.mix import MixOperator
from populations.population import LineagePopulation, open_population
from tests.cli.test_compose import TASK
from tests.operators.workbench.fakes import PARENT, verdict_of
from tests.support.agent_run import Log, LoggedModel
from tests.support.commands import evo, told
from tests.support.scripted import CARD, ENVIRONMENT, FIRST, ScriptedOperator, scored
from tests.support.scripts import script
from tests.support.spool_servers import Verdict, server

Making = Callable[[LineagePopulation, SpoolJudge, Ledger], Operator]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "QUIET_S", 0.3)


def session(tmp_path: Path, root: Source, budget: int, making: Making, width: int = 3) -> str:
    """One `--until-waiting`, without its start; why it ended."""
    task = load("softmax")
    with open_population(
        tmp_path / "p.db", task=CARD, task_identity=task.identity, environment=ENVIRONMENT, seed=3
    ) as population:
        population.plant(root)
        before = population.counters()
        ledger = Ledger(Budget(evaluations=budget), Spent(evaluations=before.charged))
        judge = SpoolJudge(SpoolFolder(tmp_path / "box"), task, ENVIRONMENT, JudgeSettings())
        engine = Engine(
            population, making(population, judge, ledger), judge, ledger, EngineSettings(width=width, confirmations=1)
        )
        with compose.giving_up(judge, engine):
            ended = engine.run()
        return compose.WAITS if judge.gave_up else ended.cause


def until_done(tmp_path: Path, root: Source, budget: int, making: Making, verdict: Verdict, sources: list[str]) -> int:
    """Sessions and servers in turn, never at once; how many sessions it took."""
    sessions = 1
    while session(tmp_path, root, budget, making) == compose.WAITS:
        assert SpoolFolder(tmp_path / "box").carried()[0] > 0, "it waits for something"
        served = server(
            tmp_path / "box", tmp_path / "there", verdict=verdict, before=lambda source: sources.append(source.sha256)
        ).run(until_empty=True)
        assert served.judged, "something was there to judge"
        sessions += 1
        assert sessions < 60
    return sessions


def test_a_search_is_parked_and_goes_on_until_its_budget_is_spent(tmp_path, quick):
    judged: list[str] = []
    sessions = until_done(tmp_path, FIRST, 12, lambda *parts: ScriptedOperator(), scored, judged)
    with open_population(
        tmp_path / "p.db", task=CARD, task_identity=load("softmax").identity, environment=ENVIRONMENT, seed=3
    ) as population:
        counters, champion = population.counters(), population.champion()
        assert champion is not None and not population.pending()
    assert sessions > 4
    assert counters.charged == len(judged), "each verdict is counted once"
    assert counters.evaluations["score"] >= 12 and len(os.listdir(tmp_path / "box" / "aside")) == 0


def test_agents_park_their_conversations_at_a_tool_call_and_ask_no_model_twice(tmp_path, quick):
    log, judged = Log(tmp_path / "log.txt"), list[str]()

    def agent(population: LineagePopulation, judge: SpoolJudge, ledger: Ledger) -> Operator:
        rooms = rooms_of(population, judge, None, ledger.charge)
        return MixOperator([AvoOperator(LoggedModel(log, 0.0), rooms, population.diary, tmp_path / "rooms")])

    sessions = until_done(tmp_path, PARENT, 36, agent, verdict_of, judged)
    with open_population(
        tmp_path / "p.db", task=CARD, task_identity=load("softmax").identity, environment=ENVIRONMENT, seed=3
    ) as population:
        counters = population.counters()
    calls = (tmp_path / "log.txt").read_text().splitlines()
    assert counters.calls == calls.count("call"), "each answer is booked once"
    taken = len(os.listdir(tmp_path / "box" / "taken"))
    assert 36 <= counters.charged <= taken, "no verdict is counted twice"
    assert 0 <= len(judged) - taken <= 3, "what the end of the budget left"
    again = [name for name in os.listdir(tmp_path / "box" / "taken") if not name.endswith("-0")]
    assert not again, "what a gate had measured before it was parked is not measured again"
    assert sessions > 5 and counters.passed > 1, "one was committed through the gate"


def wait_for(condition: Callable[[], object], within_s: float = 90.0) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_real_judge_serves_commands_and_ends_at_once_when_told(tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    Path("twice.py").write_text(f"{TASK}\n\nreference.compiled_baseline = False\n")
    Path("mine.py").write_text(first_kernel(load("twice.py")).text)
    command = script("-m", "evo_kernel.cli.main", "judge", "box", "--device", "cpu", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served, ExitStack() as ends:
        ends.callback(served.kill)  # or what fails here would wait for it
        wait_for(lambda: SpoolFolder(Path("box")).announcements())
        found = told(evo("verify", "mine.py", "--task", "twice.py", "--judge", "spool:box", "--json"))
        assert found["status"] == "passed" and found["environment"]["kind"] == "modeled"
        profile = told(evo("profile", "mine.py", "--task", "twice.py", "--judge", "spool:box", "--json"))
        assert profile["cases"]["n64"]["kernels"][0]["us"] > 0
        began = time.monotonic()
        served.send_signal(signal.SIGTERM)
        assert served.wait(20.0) == 0 and time.monotonic() - began < 15.0
        assert served.stdout is not None
        judged = json.loads(served.stdout.read())["judged"]
    assert judged == {"profiles": 1, "passed": 1}
    for words in (["run", "twice.py", "--judge", "spool:box", "--first", "auto"], ["resume", "twice.db"]):
        parked = told(evo(*words, "--until-waiting", "--json"))  # the population keeps the place
        assert parked["cause"] == "waiting" and parked["waiting"]["requests"] == 1 and parked["waiting"]["bytes"] > 500
    there = script("-m", "evo_kernel.cli.main", "judge", "box", "--device", "cpu", "--until-empty", "--json")
    subprocess.run(there, check=True, capture_output=True, timeout=60)
    evo("resume", "twice.db", "--until-waiting", "--set", "budget.evaluations=1", "--json")
    brief = json.loads(evo("ask", "twice.db").output)
    Path("other.py").write_text(Path("mine.py").read_text() + "\n\nMINE = 1\n")
    tell = ("tell", "twice.db", "--attempt", brief["attempt"], "other.py", "--until-waiting")
    before = SpoolFolder(Path("box")).carried()[0]
    assert told(evo(*tell, "--json"))["waiting"]["requests"] == before + 1


def test_mistakes_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("twice.py").write_text(f"{TASK}\n\nreference.compiled_baseline = False\n")
    for words, says in {
        ("--judge", "elsewhere"): "write local, spool:DIR",
        ("--judge", "spool:box", "--until-waiting"): "evo-kernel judge",
        ("--judge", "spool:box", "--device", "cpu"): "Give it to `evo-kernel judge",
        ("--until-waiting",): "--judge spool:DIR",
    }.items():
        with pytest.raises(Exception) as found:
            ended = evo("run", "twice.py", *words)
            assert ended.exit_code == 2, ended.output
            raise ValueError(ended.output)
        assert says in str(found.value)
    assert not Path("twice.db").exists()
