"""A session with somebody outside: the machine may fail in the middle, and telling again harms nobody."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evo_kernel.app.external_session import ExternalSession
from evo_kernel.errors import InfraError, PopulationError
from evo_kernel.types import Evaluation, Purpose, Source, Status
from populations.population import open_population
from tests.support.scripted import CARD, ENVIRONMENT, FIRST, TASK, ScriptedJudge, scored

MINE = Source("time_us = 50.0\n")


def test_a_machine_that_fails_once_costs_no_verdict_and_one_that_fails_on_leaves_it_pending(tmp_path: Path) -> None:
    failing = [1, 3, 4, 5]  # of the judge's answers: the second, then those of a second kernel to the end
    said: list[str] = []

    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        if number in failing:
            raise InfraError("the GPU fell off the bus")
        return scored(source, purpose)

    with open_population(
        tmp_path / "p.db", task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1
    ) as population:
        parts: Any = SimpleNamespace(judge=ScriptedJudge(answer), population=population)
        session = ExternalSession(parts, said.append, wait_s=0.0)
        session.judge(population.plant(FIRST))
        attempt, other = (population.ask("somebody").attempt for _ in range(2))
        told = session.tell(attempt, MINE, "me", "shave")
        assert (told.evaluation.status, told.is_best, told.gain_text) == (
            Status.PASSED, True, "2.000x as fast as its parent, the best so far",
        )  # fmt: skip
        assert said == ["the machine failed, 2 more tries: the GPU fell off the bus"]
        again = session.tell(attempt, MINE, "me", "shave")
        assert again.recorded.candidate == told.recorded.candidate and len(parts.judge.asked) == 3
        with pytest.raises(PopulationError, match="told already, another source"):
            session.tell(attempt, FIRST, "me", None)
        slow = Source("time_us = 80.0\n")
        failed = session.tell(other, slow, "me", None)
        assert failed.evaluation.status is Status.INFRA_ERROR
        assert [one.candidate for one in population.pending()] == [failed.recorded.candidate]
        mended = session.tell(other, slow, "me", None)
        assert mended.evaluation.passed and mended.recorded.candidate == failed.recorded.candidate
        assert not mended.is_best and not population.pending()
