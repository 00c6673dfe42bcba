"""What one run leaves to the next: lessons in a file, and the best kernel of another task; real judge, no GPU."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from evo_kernel.errors import ConfigError, UserError
from operators.llm.transcript import unpack
from tests.cli.test_end_to_end import NAME, TASK
from tests.support.commands import evo

QUICK = ["--device", "cpu", "--set", "judge.tune_plans=0", "--set", "width=1"]
OTHER = "squeeze"
AGENT = ["--model", "scripted", "--set", "agents.coder=llm", "--set", "agents.repairs=0"]
LESSONS = ["--set", "agents.lessons=['lessons.jsonl']"]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory):
    before, made = os.getcwd(), tmp_path_factory.mktemp("learning")
    (made / f"{NAME}.py").write_text(TASK)
    (made / f"{OTHER}.py").write_text(TASK.replace("tanh(x - 2.0 * y).sum(-1)", "tanh(x - 3.0 * y).amax(-1)"))
    os.chdir(made)
    yield made
    os.chdir(before)


@pytest.fixture(scope="module")
def first(folder: Path) -> Path:
    """A run without any model that keeps what it learnt."""
    ended = evo(
        "run", f"{NAME}.py", *QUICK, "--set", "budget.evaluations=4", "--set", "agents.keep_lessons=lessons.jsonl"
    )
    assert ended.exit_code == 0, ended.output
    return folder / f"{NAME}.db"


@pytest.fixture(scope="module")
def second(first: Path, folder: Path) -> str:
    """A run on another task that is told of the first one's lessons and kernel: all that its models were asked."""
    more = ["--set", "operators.use=['llm-mtmc']", "--set", "budget.tokens=16000"]
    ended = evo("run", f"{OTHER}.py", "--start-from", first.name, *QUICK, *AGENT, *LESSONS, *more)
    assert ended.exit_code == 0, ended.output
    return prompts_in(folder / f"{OTHER}.db")


def prompts_in(population: Path) -> str:
    with sqlite3.connect(population) as connection:
        said = [unpack(row[0]) for row in connection.execute("SELECT messages FROM calls")]
    return "\n".join(message["content"] for one in said for message in one["request"]["messages"])


def test_a_run_without_a_model_keeps_lessons_of_what_it_tried(first: Path) -> None:
    lessons = [json.loads(line) for line in Path("lessons.jsonl").read_text().splitlines()]
    assert lessons and all(one["task"] == NAME and one["times"] >= 1 for one in lessons)
    assert all("reduction" in one["traits"] for one in lessons)


def test_a_later_run_is_told_of_them(second: str) -> None:
    told = second.split("## What has paid on similar tasks\n")[1].split("\n## ")[0]
    name = json.loads(Path("lessons.jsonl").read_text().splitlines()[0])["strategy"]
    assert f"- {name}: " in told and f"on {NAME} (" in told


def test_the_parent_comes_with_its_profile(second: str) -> None:
    told = second.split("## Profile of the parent\n")[1].split("\n## ")[0]
    assert told.startswith("times are modeled (sm_90)") and "  bound by     " in told and "  occupancy    " in told


def test_nothing_is_told_that_was_not_asked_for(first: Path) -> None:
    ended = evo(
        "run", f"{OTHER}.py", "--population", "none.db", *QUICK, *AGENT, "--dry-run", "--set", "operators.avo=1"
    )
    assert ended.exit_code == 0 and "## Choose one" in ended.output
    assert "similar tasks" not in ended.output and "another task" not in ended.output


def test_within_a_population_what_was_learnt_is_told_after_a_resume(second: str, folder: Path) -> None:
    ended = evo("resume", f"{OTHER}.db", "--set", "budget.tokens=60000")
    assert ended.exit_code == 0, ended.output
    assert "## What has paid in this population\n- " in prompts_in(folder / f"{OTHER}.db")


def test_prompts_tell_of_the_task_that_the_kernels_come_from(second: str, first: Path) -> None:
    origin = second.split("## Where the first kernels come from\n")[1].split("\n## ")[0]
    assert f"another task, {NAME}," in origin
    assert "-    return torch.tanh(x - 2.0 * y).sum(-1)" in origin
    assert "+    return torch.tanh(x - 3.0 * y).amax(-1)" in origin
    example = second.split("## The fastest kernel of that task\n")[1].split("\n## ")[0]
    best = evo("show", first.name, "best", "--source").output
    kernels = [line for line in best.splitlines() if line.startswith("def ")]
    assert len(kernels) >= 2 and all(line in example for line in kernels)


@pytest.mark.parametrize("where", [".", "elsewhere"])
def test_agents_with_prompts_of_their_own_are_told_too(first: Path, where: str, folder: Path, monkeypatch) -> None:
    """From another working folder, too: what is stored with a run are whole paths."""
    (folder / where).mkdir(exist_ok=True)
    monkeypatch.chdir(folder / where)
    lessons = ["--set", f"agents.lessons=['{folder}/lessons.jsonl']"]
    ended = evo(
        "run", folder / f"{OTHER}.py", "--population", "none.db", "--start-from", first, "--dry-run", *QUICK, *AGENT,
        *lessons, "--set", "operators.use=['avo']",
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output
    for title in (
        "Where the first kernels come from",
        "The fastest kernel of that task",
        "What has paid on similar tasks",
    ):
        assert ended.output.count(f"## {title}\n") == 1, title


def test_an_agent_from_outside_finds_it_in_its_folder(second: str, folder: Path) -> None:
    told = "cp README.md " + str(folder / "told.md")
    ended = evo("agent", f"{OTHER}.db", "--command", told, "--minutes", "1", "--json")
    assert ended.exit_code == 1, ended.output  # nothing committed
    text = (folder / "told.md").read_text()
    assert f"another task, {NAME}," in text and "## What has paid on similar tasks" in text


def test_mistakes_with_lessons(first: Path) -> None:
    run = ["run", f"{OTHER}.py", "--population", "no.db", *QUICK]
    with pytest.raises(UserError, match=r"absent\.jsonl: the lessons cannot be read"):
        evo(*run, "--set", "agents.lessons=['absent.jsonl']")
    with pytest.raises(ConfigError, match="would write over"):
        evo(*run, *LESSONS, "--set", "agents.keep_lessons=lessons.jsonl")
    with pytest.raises(ConfigError, match="there is no folder"):
        evo(*run, "--set", "agents.keep_lessons=nowhere/lessons.jsonl")
