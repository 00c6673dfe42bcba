"""A search by an agent as a process of its own: real engine, population, workbench and gate; scripted model and judge.

python -m tests.support.agent_run FILE LOG [--slow SECONDS] [--budget EVALUATIONS]

Each answer of the model and each evaluation of the judge is a line of LOG at the moment it is made, so that what was
spent is known from outside, whatever happens to the process.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from dataclasses import replace
from pathlib import Path

from evo_kernel.app.workbench import rooms_of
from evo_kernel.budget import Budget, Ledger, Spent
from evo_kernel.engine import Engine, EngineSettings
from evo_kernel.types import Evaluation, Purpose, Source
from operators.avo.operator import AvoOperator
from operators.llm.base import Message, Model, ModelRequest, Reply
from operators.llm.models import Asked, ScriptedModel
from operators.mix import MixOperator
from populations.population import open_population
from populations.statistics import SearchTotals
from tests.operators.avo.support import does, evaluates, submits, writes
from tests.operators.workbench.fakes import PARENT, verdict_of
from tests.support.scripted import CARD, ENVIRONMENT, TASK, ScriptedJudge

DOLLARS = 0.01
ROUNDS = 4
_ATTEMPT = re.compile(r"# Attempt (\d+)")


class Log:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def line(self, text: str) -> None:
        os.write(self._file, f"{text}\n".encode())


class LoggedModel(Model):
    """Takes a while for an answer, and costs a cent; the answer depends on the prompt alone."""

    name = "scripted"

    def __init__(self, log: Log, slow: float) -> None:
        self._log, self._slow, self._model = log, slow, ScriptedModel(answer)

    def answer(self, request: ModelRequest) -> Reply:
        time.sleep(self._slow)
        reply = self._model.answer(request)
        self._log.line("call")
        return replace(reply, call=replace(reply.call, dollars=DOLLARS, wall_s=self._slow))


class LoggedJudge(ScriptedJudge):
    def __init__(self, log: Log, slow: float) -> None:
        super().__init__(answer=self._answer, wait_s=slow)
        self._log = log

    def _answer(self, source: Source, purpose: Purpose, number: int) -> Evaluation:
        found = verdict_of(source, purpose)
        self._log.line(f"charged {sum(found.charged.values())}")
        return found

    def profile(self, source, knobs, kinds, counters, case_name):
        raise AssertionError("the script does not profile")


def answer(asked: Asked) -> str | Message:
    """Look, then rounds of change and evaluation, then submit: faster in every other attempt."""
    found = _ATTEMPT.search("".join(message.content for message in asked.messages[:3]))
    attempt = int(found[1]) if found else 0
    done = sum(message.role == "assistant" for message in asked.messages)
    if done == 0:
        return does(("list_files", {}), ("lineage", {}), ("notes", {}))
    if done <= ROUNDS:
        slower = 200.0 + attempt + done / 10
        return does(writes(slower, f"# {attempt}.{done}\n"), ("probe", {}), evaluates(f"idea {attempt} round {done}"))
    if attempt % 2 or done > ROUNDS + 1:
        return does(("give_up", {"reason": "nothing left"}))
    return does(writes(100.0 * 0.99**attempt), submits(f"step-{attempt}"))


def search(path: Path, log: Path, slow: float, budget: int) -> SearchTotals:
    lines = Log(log)
    judge = LoggedJudge(lines, slow)
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=3) as population:
        population.plant(PARENT)
        before = population.counters()
        ledger = Ledger(Budget(evaluations=budget), Spent(evaluations=before.charged, dollars=before.dollars))
        rooms = rooms_of(population, judge, None, ledger.charge)  # type: ignore[arg-type]
        agent = AvoOperator(LoggedModel(lines, slow), rooms, population.diary, path.parent / "rooms")
        Engine(population, MixOperator([agent]), judge, ledger, EngineSettings(width=2)).run()
        return population.counters()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--slow", type=float, default=0.01)
    parser.add_argument("--budget", type=int, default=100)
    options = parser.parse_args()
    search(options.file, options.log, options.slow, options.budget)


if __name__ == "__main__":
    main()
