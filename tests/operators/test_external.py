"""Attempts of agents that are not ours: calls of tools, durable before their answers; only the judge is scripted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evo_kernel.app.workbench import PopulationLineage, open_workbench, rooms_of
from evo_kernel.errors import PopulationError
from evo_kernel.types import Purpose, Source
from operators.external import ExternalAttempt, brief_text, limits_text
from operators.knowledge.base import KnowledgeBase
from operators.workbench.judge_tools import Allowed
from populations.population import LineagePopulation, open_population
from tests.support.scripted import CARD, ENVIRONMENT, TASK, ScriptedJudge, scored

FIRST = Source("time_us = 100.0\n\n\ndef run(x):\n    return x\n")
FASTER = {"path": "kernel.py", "edits": [{"search": "time_us = 100.0", "replace": "time_us = 50.0"}]}
SUBMIT = {"strategy": "shave", "idea": "half the time"}


@pytest.fixture
def population(tmp_path: Path) -> Iterator[LineagePopulation]:
    with open_population(tmp_path / "p.db", task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as found:
        found.tell(found.plant(FIRST), scored(FIRST, Purpose.SCORE))
        yield found


def begun(population: LineagePopulation, folder: Path, allowed: Allowed | None = None) -> ExternalAttempt:
    brief = population.ask()
    rooms = rooms_of(population, ScriptedJudge(), KnowledgeBase(api=False), lambda spent: None)  # type: ignore[arg-type]
    bench = open_workbench(folder, rooms, brief, "external", allowed)
    return ExternalAttempt(brief, bench, population.diary, "external")


def test_what_an_agent_submits_becomes_a_proposal(population: LineagePopulation, tmp_path: Path) -> None:
    attempt = begun(population, tmp_path / "w")
    for tool, arguments in (("edit_file", FASTER), ("probe", {}), ("evaluate", {"idea": "half"})):
        assert not attempt.call(tool, arguments).failed
    with pytest.raises(ValueError, match="no submission"):
        attempt.proposal()
    assert attempt.call("submit", SUBMIT).submission is not None
    proposal = attempt.proposal()
    assert proposal.source.text == FIRST.text.replace("100.0", "50.0") and proposal.operator == "external"
    assert proposal.strategy is not None and (proposal.strategy.name, proposal.probes) == ("shave", 0)
    assert [step.action.split(":")[0].split()[0] for step in proposal.steps] == ["probe", "evaluate", "submit"]
    assert {step.outcome for step in proposal.steps} == {"kept"}
    spent = population.counters().evaluations
    assert spent["probe"] == 1 and spent["score"] >= 2 and spent["confirm"] == 1  # booked, though not told yet


def test_an_attempt_goes_on_where_an_earlier_process_left_it(population: LineagePopulation, tmp_path: Path) -> None:
    attempt = begun(population, tmp_path / "w", Allowed(evaluations=4))
    attempt.call("edit_file", FASTER)
    attempt.call("evaluate", {"idea": "some gain"})
    brief = attempt.brief
    rooms = rooms_of(population, ScriptedJudge(), None, lambda spent: None)  # type: ignore[arg-type]
    bench = open_workbench(tmp_path / "again", rooms, brief, "external", Allowed(evaluations=4))
    again = ExternalAttempt(brief, bench, population.diary, "external")
    assert "left: 3 evaluations" in bench.left() and len(again.steps) == 1


def test_a_refused_submission_is_a_step_rolled_back(population: LineagePopulation, tmp_path: Path) -> None:
    attempt = begun(population, tmp_path / "w")
    attempt.call(
        "edit_file", {"path": "kernel.py", "edits": [{"search": "time_us = 100.0", "replace": "time_us = 120.0"}]}
    )
    answer = attempt.call("submit", SUBMIT)
    assert "Not committed. Its gain over the version to beat is not sure" in answer.text
    assert [step.outcome for step in attempt.steps] == ["rolled back"] and attempt.submission is None


def test_calls_are_no_more_once_it_is_closed(population: LineagePopulation, tmp_path: Path) -> None:
    attempt = begun(population, tmp_path / "w")
    attempt.close()
    assert "the attempt is over" in attempt.call("probe", {}).text


def test_the_brief_holds_task_parent_and_limits(population: LineagePopulation) -> None:
    text = brief_text(population.ask())
    assert "Source of the parent" in text and FIRST.text.strip() in text
    assert limits_text(Allowed(evaluations=7)).startswith("at most 7 evaluations, ")


def test_agents_are_told_no_paths_of_the_host(population: LineagePopulation) -> None:
    lineage = PopulationLineage(population)
    assert lineage.version(1).candidate == 1
    for ask in (lambda: lineage.version(2), lambda: lineage.versions(3, "path", 7)):
        with pytest.raises(PopulationError, match=r"there is no version C\d; they are numbered 1 to 1") as caught:
            ask()
        assert str(population.path.parent) not in str(caught.value)
