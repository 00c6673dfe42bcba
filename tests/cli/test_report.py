"""`report` and the pictures of `tree`, on a file that a real search wrote with a scripted judge."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from evo_kernel.budget import Budget, Ledger
from evo_kernel.engine import Engine
from populations.population import open_population
from tests.support.commands import evo, told
from tests.support.scripted import CARD, ENVIRONMENT, FIRST, TASK, ScriptedJudge, ScriptedOperator


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "scripted.db"
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
        population.plant(FIRST)
        Engine(population, ScriptedOperator(), ScriptedJudge(), Ledger(Budget(evaluations=12))).run()
    return path


def test_a_report_tells_the_path_and_how_to_repeat_it(searched: Path, tmp_path: Path) -> None:
    page, text = tmp_path / "run.html", tmp_path / "run.md"
    found = told(evo("report", searched, "--to", page, "--to", text, "--json"))
    status = told(evo("status", searched, "--json"))
    assert found["path"][-1]["candidate"] == status["champion"]["candidate"]
    assert math.prod(step["gain"] or 1.0 for step in found["path"]) == pytest.approx(status["champion"]["score"])
    html = page.read_text()
    for said in ("Which edits made it", "modeled for an H200 (sm_90)", "shave", f"evo-kernel resume {searched}"):
        assert said in html and said in text.read_text().replace("\\", "")
    assert html.count("<img") == 3 and "<script" not in html
    assert "| candidate | edit | score | gain |" in text.read_text()
    assert "| operator | attempts | candidates | by rules | passed | dollars | best score |" in text.read_text()
    assert "| scripted | 11 | 11 | 11 | 11 |" in text.read_text()  # no model was asked


def test_a_report_where_nothing_has_passed_says_so(tmp_path: Path) -> None:
    path = tmp_path / "young.db"
    with open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1) as population:
        population.plant(FIRST)
    page, text = tmp_path / "run.html", tmp_path / "run.md"
    assert evo("report", path, "--to", page, "--to", text).exit_code == 0
    assert all("No candidate has passed yet." in place.read_text() for place in (page, text))


def test_a_report_is_html_or_markdown(searched: Path) -> None:
    with pytest.raises(Exception, match=r"written as .html or .md, not '.pdf'"):
        evo("report", searched, "--to", "run.pdf")
