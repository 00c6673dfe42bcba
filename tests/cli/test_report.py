"""`report` and the pictures of `tree`, on a file that a real search wrote with a scripted judge."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from evo_kernel.app.ablation import ENTANGLED, taken_apart
from evo_kernel.app.run_report import ReportedEdit, blocks, still_worth
from evo_kernel.budget import Budget, Ledger
from evo_kernel.engine import Engine
from evo_kernel.observe.document import markdown
from evo_kernel.types import Evaluation, Purpose, Source, Status
from populations.population import open_population
from populations.reading import PopulationReader
from tests.support.commands import evo, told
from tests.support.scripted import CARD, ENVIRONMENT, FIRST, TASK, ScriptedJudge, ScriptedOperator, scored


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
    for said in ("Which edits made it", "modeled (sm_90)", "shave", f"evo-kernel resume {searched}"):
        assert said in html and said in text.read_text().replace("\\", "")
    assert html.count("<img") == 3 and "<script" not in html
    assert "| candidate | edit | score | gain |" in text.read_text()


def test_a_report_is_html_or_markdown(searched: Path) -> None:
    with pytest.raises(Exception, match=r"written as .html or .md, not '.pdf'"):
        evo("report", searched, "--to", "run.pdf")


def test_edits_are_taken_out_one_by_one(searched: Path) -> None:
    first = "time_us = 100\n\nx\n\ny\n"
    faster = first.replace("100", "50")
    renamed = faster.replace("x", "X")
    again = renamed.replace("X", "XX")
    texts = [first, faster, renamed, again, again.replace("y", "Y")]
    edits = [ReportedEdit(number, f"edit {number}", 1.0, 1.5, text) for number, text in enumerate(texts, 1)]

    def judge(source: Source) -> Evaluation:
        found = scored(source, Purpose.SCORE)
        return found if "Y" in source.text else replace(found, status=Status.WRONG, score=None, reason="off by 2")

    apart, again = taken_apart(edits, judge, ())
    assert again == 2.0
    assert [edit.without and edit.without.verdict for edit in apart] == [
        None, "passed", ENTANGLED, "passed", "wrong: off by 2",
    ]  # fmt: skip
    assert [still_worth(edit, again) for edit in apart] == [None, 2.0, None, 1.0, None]
    with PopulationReader(searched) as reader:
        text = markdown(blocks(reader, apart, again))
    assert "| candidate | edit | score | gain | still worth | without it |" in text
    assert "| 2 | edit 2 | 1.000 | 1.50x | 2.00x | passed, score 1.000 |" in text


def test_the_lineage_as_pictures(searched: Path, tmp_path: Path) -> None:
    picture, other = tmp_path / "tree.svg", tmp_path / "tree.png"
    assert told(evo("tree", searched, "--to", picture, "--to", other, "--json"))["files"] == [str(picture), str(other)]
    path = told(evo("tree", searched, "--json"))["path"]
    assert _drawn(picture) >= {f"candidate-{number}" for number in path} and "shave" in picture.read_text()
    assert other.read_bytes().startswith(b"\x89PNG")
    evo("tree", searched, "--to", picture, "--all")
    assert len(_drawn(picture)) == told(evo("status", searched, "--json"))["candidates"]


def _drawn(picture: Path) -> set[str]:
    return {part.get("id", "") for part in ElementTree.parse(picture).iter() if "candidate-" in part.get("id", "")}
