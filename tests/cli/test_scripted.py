"""The whole path with the packaged scripted model: run, resume, tree, show, status; real judge, no GPU."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from evo_kernel.errors import UserError
from tests.cli.test_end_to_end import NAME, TASK
from tests.support.chat_server import Answer, ChatServer
from tests.support.commands import evo, told

QUICK = ["--device", "cpu", "--set", "judge.tune_plans=0", "--set", "width=1", "--set", "agents.repairs=0"]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory):
    before, made = os.getcwd(), tmp_path_factory.mktemp("scripted")
    (made / f"{NAME}.py").write_text(TASK)
    os.chdir(made)
    yield made
    os.chdir(before)


@pytest.fixture(scope="module")
def searched(folder: Path):
    budget = ["--set", "budget.tokens=20000", "--set", "operators.use=['llm-mtmc']", "--set", "agents.coder=llm"]
    return evo("run", f"{NAME}.py", "--model", "scripted", "--json", *budget, *QUICK)


def test_a_search_with_a_scripted_model(searched) -> None:
    assert searched.exit_code == 0, searched.output
    found = told(searched)
    (model,) = found["models"]
    (operator,) = found["operators"]
    assert model["model"] == "scripted" and model["calls"] >= 2 and model["tokens_in"] > 1000
    assert model["dollars"] == 0 and 0 <= model["cached_share"] <= 1
    assert operator["operator"] == "llm-mtmc" and operator["candidates"] >= 1


def test_the_ledger_and_the_tree_tell_of_it(searched, folder: Path) -> None:
    status = told(evo("status", f"{NAME}.db", "--json"))
    assert 10000 < status["tokens"] <= 20000, "its budget holds for a script too"
    assert status["tokens"] == sum(one["tokens_in"] + one["tokens_out"] for one in status["models"])
    text = evo("status", f"{NAME}.db").output
    assert "model        scripted: " in text and "% cached)" in text and "operator     llm-mtmc: " in text
    tree = evo("tree", f"{NAME}.db", "--all").output
    assert "lineage, scores modeled" in tree and tree.count("\n") >= 3
    shown = told(evo("show", f"{NAME}.db", str(status["candidates"]), "--json"))
    assert shown["operator"] == "llm-mtmc" and shown["steps"]


def test_a_resume_goes_on_with_the_model_that_it_had(searched) -> None:
    before = told(evo("status", f"{NAME}.db", "--json"))["models"][0]["calls"]
    ended = evo("resume", f"{NAME}.db", "--set", "budget.tokens=40000", "--json")
    assert ended.exit_code == 0, ended.output
    assert told(ended)["models"][0]["calls"] > before


def test_a_dry_run_asks_nobody(folder: Path) -> None:
    with ChatServer([Answer("")]) as server:
        ended = evo(
            "run", f"{NAME}.py", "--population", "my-model.db", "--model", "my-model", "--base-url", server.url,
            "--dry-run", *QUICK, "--set", "operators.avo=1",
        )  # fmt: skip
        assert not server.requests
    assert ended.exit_code == 0, ended.output
    for said in (
        f"model       my-model at {server.url}",
        "llm-mtmc at weight 3",
        "avo at weight 1",
        "first kernel pass",
    ):
        assert said in ended.output, said
    assert not Path("my-model.db").exists()


def test_a_dry_run_needs_no_key_and_says_how_long_money_lasts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        silent = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        models = ["models.mine.name=mine", f"models.mine.base_url={silent}"]
        sets = [part for one in (*models, "budget.tokens=200000") for part in ("--set", one)]
        ended = evo(
            "run", f"{NAME}.py", "--population", "no.db", "--model", "openai/gpt-4o", "--dry-run", *sets, *QUICK
        )
    assert ended.exit_code == 0, ended.output
    assert "openai/gpt-4o; not ready: openai/gpt-4o needs OPENAI_API_KEY in the environment" in ended.output
    assert f"mine at {silent}; not ready: nobody answers at {silent}" in ended.output
    assert re.search(r"lasts       200,000 tokens: \d+ calls or more", ended.output), ended.output
    ((calls, worst),) = re.findall(r"lasts       \$5: (\d+) calls or more \(.*: \$([\d.]+)\)", ended.output)
    assert int(calls) * float(worst) == pytest.approx(5.0, rel=0.1)


def test_mistakes_with_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="openai/gpt-4o needs OPENAI_API_KEY in the environment"):
        evo("run", f"{NAME}.py", "--model", "openai/gpt-4o", "--population", "keyless.db", *QUICK)
    with pytest.raises(UserError, match="name one"):
        evo("run", f"{NAME}.py", "--base-url", "http://localhost:1/v1")
    for mistake in ("operators.use=['nope']", "operators.policy=llm", "operators.use=['avo']"):
        with pytest.raises(UserError):  # before there is a population that would keep it
            evo("run", f"{NAME}.py", "--population", "bad.db", "--set", mistake)
        assert not Path("bad.db").exists()
