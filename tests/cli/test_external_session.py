"""A session with somebody outside: the machine may fail in the middle, and telling again harms nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evo_kernel.app.external_session import ExternalSession
from evo_kernel.errors import InfraError, PopulationError, UserError
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


def test_a_chosen_candidate_is_confirmed_and_meets_the_champion_only_where_it_would_take_its_place(
    tmp_path: Path,
) -> None:
    fast, slow, wrong = Source("time_us = 40.0\n"), Source("time_us = 80.0\n"), Source("time_us = 90.0\n")

    def answer(source: Source, purpose: Purpose, number: int) -> Evaluation:
        found = scored(source, purpose)
        if source.sha256 != wrong.sha256:
            return found
        return replace(found, status=Status.WRONG, reason="it is wrong", score=None, measurements=(), verdicts=())

    with open_population(
        tmp_path / "p.db", task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1
    ) as population:
        judge = ScriptedJudge(answer)
        parts: Any = SimpleNamespace(judge=judge, population=population)
        session = ExternalSession(parts, lambda line: None, wait_s=0.0)
        session.judge(population.plant(FIRST))
        medium, best, other, bad = (
            session.tell(population.ask("me").attempt, source, "me", None).recorded.candidate
            for source in (MINE, fast, slow, wrong)
        )
        population.note_confirmation(due=True)

        def confirm(candidate: int) -> tuple[Source | None, int, bool]:
            assert session.confirm(candidate).passed
            champion = population.champion()
            assert champion is not None and judge.asked[-1][1] is Purpose.CONFIRM
            return judge.against[-1], champion.candidate, population.confirmation_due()

        assert confirm(medium) == (None, medium, True)  # the best is still to be confirmed
        assert confirm(other) == (None, medium, True)  # slower than the champion, which it does not challenge
        assert confirm(best) == (MINE, best, False)
        with pytest.raises(UserError, match=f"candidate {bad} has not passed where scores are modeled for an H200"):
            session.confirm(bad)
