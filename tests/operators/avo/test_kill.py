"""A process that is killed in the middle of conversations: they go on from their last stored turns, and all is paid."""

from __future__ import annotations

from evo_kernel.app.workbench import rooms_of
from evo_kernel.budget import Budget, Ledger
from evo_kernel.engine import Engine, EngineSettings
from evo_kernel.engine.attempts import Attempts
from operators.avo.operator import AvoOperator
from operators.mix import MixOperator
from populations.population import open_population
from tests.operators.workbench.fakes import PARENT
from tests.support.agent_kills import kill_often
from tests.support.agent_run import Log, LoggedJudge, LoggedModel, search
from tests.support.scripted import CARD, ENVIRONMENT, TASK, ScriptedOperator

KILLS = 5  # fifty: docs/guides/agents.md


def test_conversations_survive_kills(tmp_path):
    found = kill_often(tmp_path, KILLS)
    assert not found.faults
    assert found.kills == KILLS and found.in_conversation >= KILLS - 1 and found.resumed >= KILLS - 1
    assert found.counted[0] > 20 and found.counted[1] > 20


def test_an_agent_commits_through_the_real_gate(tmp_path):
    counters = search(tmp_path / "agents.db", tmp_path / "log.txt", 0.0, 60)
    assert counters.best_score > 1.0 and counters.candidates > 2 and counters.failures
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert counters.charged == sum(line != "call" for line in lines), "each evaluation is counted once"
    assert counters.calls == lines.count("call")


def test_a_run_that_ends_sets_its_conversation_aside(tmp_path):
    """No failure is recorded, and the next session finishes the attempt, in a mix as well."""
    log = Log(tmp_path / "log.txt")
    with opened(tmp_path) as population:
        left = iter([False] * 6 + [True] * 99)
        judge, ledger = LoggedJudge(log, 0.0), Ledger(Budget())
        agent = AvoOperator(
            LoggedModel(log, 0.0), rooms_of(population, judge, None, ledger.charge), population.diary,
            tmp_path / "rooms", stopping=lambda: next(left),
        )  # fmt: skip
        engine = Engine(population, agent, judge, ledger, EngineSettings(barren=1, infra_wait_s=0.0))
        Attempts(engine).make()
        assert not engine.failures and not population.counters().failures
        turns = len(list(population.diary.turns(2)))
        assert turns > 3
    with opened(tmp_path) as population:
        brief = population.ask()
        assert brief.attempt == 2
        agent = AvoOperator(
            LoggedModel(log, 0.0),
            rooms_of(population, judge, None, ledger.charge),
            population.diary,
            tmp_path / "rooms",
        )
        mix = MixOperator([ScriptedOperator(), agent], {"scripted": 1.0, "avo": 0.0})
        proposal = mix.propose(brief, judge.evaluate)
        assert proposal.operator == "avo" and len(list(population.diary.turns(2))) > turns


def opened(folder):
    found = open_population(folder / "p.db", task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=3)
    found.plant(PARENT)
    return found
