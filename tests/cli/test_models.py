"""Operators with a model in a real search: budgets, rows, secrets, endpoints that are down."""

from __future__ import annotations

import functools
import json
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evo_kernel.app import models, operator_factory
from evo_kernel.app.run_config import ModelOptions
from evo_kernel.config import Config, config_from, with_overrides
from evo_kernel.errors import ConfigError
from evo_kernel.types import Purpose
from operators.llm.limits import Endpoint
from operators.llm.litellm_model import Patience
from operators.llm.transcript import unpack
from populations.reading import PopulationReader
from tests.support.chat_server import Answer, ChatServer, broken, failure
from tests.support.commands import evo, evo_main
from tests.support.modelled import FIRST, CommentJudge, config_for, faster, kernel_of, opened, search
from tests.support.scripted import ScriptedOperator
from tests.support.scripts import script

READ, WRITE, CACHED = 10e-6, 30e-6, 1e-6  # dollars a token, as in `config_for`


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of hundredths of seconds, and endpoints that rest for tenths."""
    patience = functools.partial(Patience, tries=3, first_wait_s=0.01, longest_wait_s=0.05)
    monkeypatch.setattr(models, "Patience", patience)
    monkeypatch.setattr(models, "Endpoint", functools.partial(Endpoint, threshold=3, rest_s=0.3, longest_rest_s=0.3))


class Walker(ScriptedOperator):
    """An operator that needs no model."""

    def propose(self, brief, probe):
        from dataclasses import replace

        from evo_kernel.types import Source

        given = super().propose(replace(brief, parent=replace(brief.parent, source=Source("time_us = 90.0\n"))), probe)
        return replace(given, source=Source(kernel_of(90.0 + brief.attempt / 100)))


@pytest.fixture
def walker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_factory.plugins, "factory", lambda group, name, own: lambda: Walker(name=name))


def rows(file: Path, sql: str) -> list[tuple]:
    with sqlite3.connect(file) as connection:
        return connection.execute(sql).fetchall()


# ---- money ----------------------------------------------------------------------------------------------------------


def test_a_dollar_is_a_dollar_with_32_attempts_in_flight(tmp_path: Path) -> None:
    def answer(request, number):
        time.sleep(0.01)
        return faster(request, number)

    with ChatServer(answer) as server:
        config = config_for(server.url, width=32, budget={"dollars": 1.0})
        ended = search(tmp_path / "a.db", config)
        served = len(server.requests)
    each = 2000 * READ + 1000 * CACHED + 500 * WRITE
    (spent, calls) = rows(tmp_path / "a.db", "SELECT SUM(dollars), COUNT(*) FROM calls")[0]
    assert calls == served and spent == pytest.approx(served * each)
    assert ended.summary.spent.dollars == pytest.approx(spent)  # once, however it came home
    worst = 8192 * WRITE + 0.35  # of a prompt, by its bytes
    assert 1.0 - worst < spent <= 1.0
    assert ended.summary.cause == "budget" and "budget for models is spent" in ended.summary.why


def test_tokens_are_held_too(tmp_path: Path) -> None:
    with ChatServer(faster) as server:
        search(tmp_path / "a.db", config_for(server.url, width=8, budget={"tokens": 200_000}))
    assert rows(tmp_path / "a.db", "SELECT SUM(tokens_in + tokens_out) FROM calls")[0][0] <= 200_000


def test_a_resume_begins_with_what_was_spent(tmp_path: Path) -> None:
    with ChatServer(faster) as server:
        for dollars in (0.5, 0.8):
            ended = search(tmp_path / "a.db", config_for(server.url, budget={"dollars": dollars}))
            assert ended.summary.spent.dollars <= dollars
    assert rows(tmp_path / "a.db", "SELECT COUNT(DISTINCT run) FROM attempts")[0][0] == 2


def test_without_money_operators_that_need_no_model_go_on(tmp_path: Path, walker: None) -> None:
    with ChatServer(faster) as server:
        use = {"use": ["llm-mtmc", "walker"]}
        config = config_for(server.url, operators=use, budget={"dollars": 0.5, "evaluations": 120})
        ended = search(tmp_path / "a.db", config)
    assert ended.summary.why == "the budget of 120 evaluations is spent"
    assert sum("the budget for models is spent" in line for line in ended.heard) == 1
    with PopulationReader(tmp_path / "a.db") as reader:
        found = {one.operator: one for one in reader.operators()}
    assert found["walker"].candidates > 30 and found["llm-mtmc"].candidates >= 1
    assert found["llm-mtmc"].attempts - found["llm-mtmc"].candidates <= 1  # the one that found the purse empty
    assert found["llm-mtmc"].by_rules == 0 and found["walker"].by_rules == found["walker"].candidates


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({"budget": {"dollars": 1, "hours": 1}, "operators": {}}, False),
        ({"budget": {"dollars": 1}, "operators": {}}, True),  # nothing else would ever end it
        ({"budget": {"dollars": 1, "hours": 1}, "operators": {"use": ["llm-mtmc"]}}, True),
        ({"budget": {"dollars": 1, "hours": 1}, "operators": {}, "agents": {"when_money_is_out": "end"}}, True),
    ],
)
def test_when_a_run_ends_with_its_money(changes: dict, ends: bool) -> None:
    assert operator_factory.money_ends(config_for("http://localhost:1/v1", **changes)) is ends


# ---- endpoints ------------------------------------------------------------------------------------------------------


def test_a_search_goes_on_while_the_endpoint_is_down_and_comes_back(tmp_path: Path, walker: None) -> None:
    first: list[float] = []  # when it was asked first: what comes before may take long

    def answer(request, number):
        first.append(time.monotonic())
        return broken() if time.monotonic() < first[0] + 1.0 else faster(request, number)

    with ChatServer(answer) as server:
        use = {"use": ["llm-mtmc", "walker"]}
        config = config_for(server.url, operators=use, budget={"evaluations": 400})
        judge = CommentJudge(before=lambda source, purpose: time.sleep(0.01))
        ended = search(tmp_path / "a.db", config, judge)
    assert ended.summary.why == "the budget of 400 evaluations is spent"
    assert any("asked again later" in line for line in ended.heard)
    assert any("models are asked again" in line for line in ended.heard)
    with PopulationReader(tmp_path / "a.db") as reader:
        found = {one.operator: one for one in reader.operators()}
        (use_of,) = reader.models()
    assert found["walker"].candidates > 10 and found["llm-mtmc"].candidates > 3
    assert use_of.errors >= 3


def test_a_search_without_other_operators_waits_for_the_endpoint(tmp_path: Path) -> None:
    first: list[float] = []

    def answer(request, number):
        first.append(time.monotonic())
        return broken() if time.monotonic() < first[0] + 1.0 else faster(request, number)

    with ChatServer(answer) as server:
        ended = search(tmp_path / "a.db", config_for(server.url, budget={"evaluations": 20}))
    assert ended.summary.why == "the budget of 20 evaluations is spent"


def test_an_endpoint_that_turns_everything_down_is_let_be(tmp_path: Path, walker: None) -> None:
    with ChatServer([failure(401, "no such key", "invalid_api_key")]) as server:
        use = {"use": ["llm-mtmc", "walker"]}
        ended = search(tmp_path / "a.db", config_for(server.url, operators=use, budget={"evaluations": 60}))
        assert len(server.requests) <= 4
    assert any("no model can be asked" in line for line in ended.heard)


def test_where_nothing_but_models_is_asked_and_none_can_be_the_run_ends(tmp_path: Path) -> None:
    with ChatServer([failure(401, "no such key", "invalid_api_key")]) as server:
        ended = search(tmp_path / "a.db", config_for(server.url, budget={"hours": 1}))
    assert ended.summary.attempts <= 6 and "no model can be asked" in ended.summary.why


# ---- rows -----------------------------------------------------------------------------------------------------------


def test_every_call_is_a_row_before_its_attempt_comes_home(tmp_path: Path) -> None:
    file, seen = tmp_path / "a.db", []

    def look(source, purpose) -> None:
        if purpose is Purpose.PROBE:
            seen.append(rows(file, "SELECT COUNT(*) FROM calls")[0][0])

    answers = [Answer("prose only"), Answer("```python\ndef run(x):\n    return x\n```"), faster({}, 3)]
    with ChatServer(answers) as server:
        search(file, config_for(server.url, budget={"evaluations": 3}), CommentJudge(before=look))
        asked = server.requests
    assert seen[:2] == [2, 3]
    stored = rows(file, "SELECT tokens_in, tokens_out, tokens_cached, dollars, wall_s, messages FROM calls")
    assert len(stored) == len(asked)
    for row, request in zip(stored, asked, strict=True):
        said = unpack(row[5])
        assert [m["content"] for m in said["request"]["messages"]] == [m["content"] for m in request["messages"]]
        assert said["reply"]["content"] and row[3] is not None and row[4] > 0
    with PopulationReader(file) as reader:
        (use,) = reader.models()
        assert len(reader.candidate(2).proposal.calls) == 3
    assert (use.calls, use.tokens_cached > 0, use.errors) == (len(asked), True, 0)


def test_what_is_wrong_with_an_answer_is_remarked(tmp_path: Path) -> None:
    """A choice that cannot be used is found out after its row was written."""

    def answer(request, number):
        asked = request["messages"][-1]["content"]
        return Answer(json.dumps({"why": "", "choice": 10**6})) if "Choose one" in asked else faster(request, number)

    with ChatServer(answer) as server:
        config = config_for(server.url, agents={"knowledge": False, "coder": "llm"}, budget={"evaluations": 4})
        search(tmp_path / "a.db", config)
    with PopulationReader(tmp_path / "a.db") as reader:
        (use,) = reader.models()
        total = len(rows(tmp_path / "a.db", "SELECT 1 FROM calls"))
    assert use.calls == total  # none twice
    assert use.errors >= 1


def test_killed_at_any_time_what_was_spent_stays_counted(tmp_path: Path) -> None:
    file, kills, width = tmp_path / "a.db", 2, 4

    def answer(request, number):
        time.sleep(0.02)
        return faster(request, number)

    with ChatServer(answer) as server:
        for number in range(kills):
            words = script("-m", "tests.support.modelled", file, "--url", server.url)
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None and child.stdout.readline() == "ready\n"
                before = len(server.requests)
                while len(server.requests) < before + 3 and child.poll() is None:
                    time.sleep(0.01)
                time.sleep(random.Random(number).uniform(0, 0.2))
                child.send_signal(signal.SIGKILL)
                child.stdout.read()  # until it is gone
        asked = len(server.requests)
    stored = rows(file, "SELECT COUNT(*), COUNT(DISTINCT attempt * 1000 + position) FROM calls")[0]
    assert stored[0] == stored[1]
    assert asked - kills * width <= stored[0] <= asked  # but for those that were on their way


# ---- secrets --------------------------------------------------------------------------------------------------------


def test_a_key_reaches_neither_file_nor_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "q7TzLw0" + "secretsecret" * 2
    monkeypatch.setenv("LOCAL_API_KEY", key)

    def answer(request, number):
        if number % 3 == 0:
            return failure(500, f"internal error, your key was {key}")
        if number % 3 == 1:
            return failure(400, f"bad request with Authorization: Bearer {key}")
        return Answer(f"```python\n{kernel_of(99.0 - number, key)}```")

    with ChatServer(answer) as server:
        model = {"name": "local", "base_url": server.url, "api_key_env": "LOCAL_API_KEY", "price_in": 1, "price_out": 1}
        config = config_for(None, models={"main": model}, budget={"evaluations": 12}, width=2)
        ended = search(tmp_path / "a.db", config)
        assert server.keys[0] == f"Bearer {key}"  # it was used,
    assert ended.summary.statuses.get("passed", 0) > 1
    for file in tmp_path.iterdir():  # and is nowhere
        assert key.encode() not in file.read_bytes(), file
    texts = [*ended.heard, *ended.summary.failures, repr(ended.summary)]
    assert not any(key in text for text in texts)
    packed = [unpack(row[0]) for row in rows(tmp_path / "a.db", "SELECT messages FROM calls WHERE messages != ''")]
    assert packed and key not in json.dumps(packed)
    assert key not in "".join(row[0] for row in rows(tmp_path / "a.db", "SELECT text FROM sources"))


def test_a_key_goes_nowhere_that_only_a_population_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come from anybody. What a run of this user's used, or they name now, is known."""
    monkeypatch.setenv("LOCAL_API_KEY", "q7TzLw0secret")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "a.db"
    place = {"name": "local", "base_url": "http://127.0.0.1:9", "api_key_env": "LOCAL_API_KEY"}
    config = config_for(None, models={"main": place | {"price_in": 0, "price_out": 0}}, task=str(tmp_path / "gone.py"))
    with opened(file, config) as population:
        population.plant(FIRST)
    refused = "the key in LOCAL_API_KEY would go to http://127.0.0.1:9, where no run of yours has sent it"
    for said in ((), ("--model", "local"), ("--set", "models.main.temperature=0.5")):
        ended = evo_main("resume", file, *said)
        assert ended.returncode == 2 and refused in " ".join(ended.stderr.split())
    allowed = re.search(r"add --set (\S+)", ended.stderr)
    assert allowed is not None and "gone.py" in evo_main("resume", file, "--set", allowed[1]).stderr
    operator_factory.check(config)  # as each run does
    assert "gone.py" in evo_main("resume", file).stderr


def test_a_prompt_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that stands in what a user wrote."""
    monkeypatch.setenv("SOME_API_KEY", "planted-in-a-note-0815")
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "ours.md").write_text("# Scripted task\nWe log in with planted-in-a-note-0815 for the scripted task.\n")
    with ChatServer(faster) as server:
        config = config_for(
            server.url,
            agents={"hierarchy": False, "knowledge": True},
            knowledge={"folders": [str(notes)]},
            budget={"evaluations": 3},
        )
        search(tmp_path / "a.db", config)
        said = json.dumps(server.requests)
    assert "[SOME_API_KEY]" in said and "planted-in-a-note-0815" not in said


# ---- switches ----------------------------------------------------------------------------------


def test_an_agent_is_an_operator_that_a_later_session_goes_on_with(tmp_path: Path) -> None:
    """The first session ends by its tokens in the middle of a conversation; the second takes it up."""
    file = tmp_path / "a.db"
    says = [
        ("read_file", {"path": "kernel.py"}),
        ("write_file", {"path": "kernel.py", "text": kernel_of(80.0)}),
        ("submit", {"idea": "try tiles", "strategy": "tile-2d", "family": "tiling"}),
    ]

    def answer(request, number):
        done = sum(message["role"] == "assistant" for message in request["messages"])
        name, arguments = says[done] if done < len(says) else ("give_up", {"reason": "there is nothing left"})
        return Answer("", ((name, json.dumps(arguments)),), tokens=(3000, 100, 2000))

    avo = {"use": ["avo"]}
    with ChatServer(answer) as server:
        for tokens in (60_000, 400_000):
            budget = {"tokens": tokens, "evaluations": 8}
            search(file, config_for(server.url, operators=avo, agents={"knowledge": False}, budget=budget))
    assert rows(file, "SELECT COUNT(*) FROM runs")[0][0] == 2
    with PopulationReader(file) as reader:
        (use,) = reader.operators()
        (model,) = reader.models()
        status = reader.status()
    assert use.candidates >= 1 and use.best_score == pytest.approx(100 / 80)
    assert model.calls == len(server.requests)
    assert status.tokens <= 400_000


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"name": "anthropic/claude-3-5-haiku-latest"}, "ANTHROPIC_API_KEY"),
        ({"name": "no-such-thing"}, "Write provider/name"),
        (
            {"name": "far", "base_url": "https://models.example.com/v1"},
            r"price of far is not known.*models\.main\.price",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict, says: str
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=says):
        search(tmp_path / "a.db", config_for(None, models={"main": model}, budget={"dollars": 1}))


def test_a_server_that_takes_no_connection_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        path = tmp_path / "a.db"
        with pytest.raises(ConfigError, match=f"nobody answers at {url} .*: start the server of mine"):
            evo("run", "softmax", "--population", path, "--model", "mine", "--base-url", url)
    assert not path.exists()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"models": {"main": {"name": "x/y", "base_url": "localhost:8000"}}}, "write it like http://localhost:8000/v1"),
        ({"models": {"main": {"name": "x/y", "base_url": "http://me:key@host/v1"}}}, "keep keys out of it"),
        ({"models": {"main": {"name": "x/y", "api_key": "abc"}}}, "api_key"),
        ({"models": {"main": {"name": "x/y", "price_in": 1.0}}}, "go together"),
    ],
)
def test_a_model_that_is_written_wrong(data: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config_from(data, "test")


def test_operators_that_need_a_model_say_so() -> None:
    with pytest.raises(ConfigError, match="--model PROVIDER/NAME"):
        operator_factory.build_operator(config_from({"operators": {"use": ["llm-mtmc"]}}, "test"))


def test_nothing_imports_litellm_before_a_model_is_asked() -> None:
    code = (
        "import sys; from evo_kernel.config import load_config; from evo_kernel.app import compose, operator_factory;"
        "from evo_kernel.app import session; operator_factory.build_operator(load_config(None)); assert not {'litellm', 'operators.llm.litellm_model'} & set(sys.modules)"
    )
    subprocess.run(script("-c", code), check=True)


def test_a_dry_run_prints_the_configuration_before_it_imports_torch() -> None:
    code = (
        "import sys; from evo_kernel.app import dry_run, early_start, run_config;"
        "dry_run.dry_run(run_config.run_config(None, [], {'task': 'none.py'}, run_config.ModelOptions()))"
    )
    # The next import, which is the first slow one, fails.
    stopped = f"import sys; sys.modules['evo_kernel.app.compose'] = sys.modules['torch'] = None; {code}"
    ended = subprocess.run([sys.executable, "-P", "-c", stopped], capture_output=True, text=True, check=False)
    assert ended.stdout.startswith("budget      3m, 60 evaluations\n") and "policy      bandit" in ended.stdout
    assert "import of evo_kernel.app.compose halted" in ended.stderr, ended.stderr


def test_keys_of_a_model_that_the_command_line_names() -> None:
    named = ModelOptions(("x/one", "x/two")).put_into(Config())
    assert [one.name for one in named.models.values()] == ["x/one", "x/two"]
    changed = with_overrides(named, ["models.main.try_s=5", "budget.dollars=2"])
    assert changed.models["main"].try_s == 5 and changed.models["main"].name == "x/one"
    assert changed.models["x/two"] == named.models["x/two"] and changed.budget.dollars == 2
