"""What one run leaves to the next: the best kernel of another task; real judge, no GPU."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from operators.llm.transcript import unpack
from tests.cli.test_end_to_end import NAME, TASK
from tests.support.commands import evo

QUICK = ["--device", "cpu", "--first", "auto", "--set", "judge.tune_plans=0", "--set", "width=1"]
OTHER = "squeeze"
AGENT = ["--model", "scripted", "--set", "agents.coder=llm", "--set", "agents.repairs=0"]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory):
    before, made = os.getcwd(), tmp_path_factory.mktemp("learning")
    text = f"{TASK}\n\nreference.compiled_baseline = False\n"
    (made / f"{NAME}.py").write_text(text)
    (made / f"{OTHER}.py").write_text(text.replace("tanh(x - 2.0 * y).sum(-1)", "tanh(x - 3.0 * y).amax(-1)"))
    os.chdir(made)
    yield made
    os.chdir(before)


@pytest.fixture(scope="module")
def first(folder: Path) -> Path:
    """A run without any model."""
    ended = evo("run", f"{NAME}.py", *QUICK, "--set", "budget.evaluations=1")
    assert ended.exit_code == 0, ended.output
    return folder / f"{NAME}.db"


@pytest.fixture(scope="module")
def second(first: Path, folder: Path) -> str:
    """A run on another task that is told of the first one's kernel: all that its models were asked."""
    more = ["--set", "operators.use=['llm-mtmc']", "--set", "budget.tokens=16000"]
    ended = evo("run", f"{OTHER}.py", "--start-from", first.name, *QUICK, *AGENT, *more)
    assert ended.exit_code == 0, ended.output
    return prompts_in(folder / f"{OTHER}.db")


def prompts_in(population: Path) -> str:
    with sqlite3.connect(population) as connection:
        said = [unpack(row[0]) for row in connection.execute("SELECT messages FROM calls")]
    return "\n".join(message["content"] for one in said for message in one["request"]["messages"])


def test_the_parent_comes_with_its_profile(second: str) -> None:
    told = second.split("## Profile of the parent\n")[1].split("\n## ")[0]
    assert (
        told.startswith("times are modeled for an H200 (sm_90)")
        and "  bound by     " in told
        and "  occupancy    " in told
    )


def test_within_a_population_what_was_learnt_is_told_after_a_resume(second: str, folder: Path) -> None:
    ended = evo("resume", f"{OTHER}.db", "--set", "budget.tokens=60000")
    assert ended.exit_code == 0, ended.output
    assert "## What has paid in this population\n- " in prompts_in(folder / f"{OTHER}.db")
