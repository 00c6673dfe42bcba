"""`ask` and `tell`: the loop by hand, each command in a process's worth of state of its own; real judge, no GPU."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from evo_kernel.app import external_session
from evo_kernel.cli.main import _terminated
from evo_kernel.errors import ConfigError, PopulationError, PopulationLocked, UserError
from populations import connect
from populations.connect import OwnerLock, fetch_one
from populations.reading import PopulationReader
from tests.support.commands import child, evo, told

TASK = '''"""A difference of two rows, squashed."""

import torch

CASES = {"check": [{"m": 3, "n": 129}], "search": [{"m": 256, "n": 1000}], "confirm": [{"m": 5, "n": 67}]}


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    return torch.randn(case["m"], case["n"], **draw), torch.randn(case["m"], case["n"], **draw)


def reference(x, y):
    return torch.tanh(x - 2.0 * y)


reference.compiled_baseline = False
'''
FILE = "squash.db"


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A working folder with a population of one judged kernel."""
    before, made = os.getcwd(), tmp_path_factory.mktemp("outside")
    (made / "squash.py").write_text(TASK)
    os.chdir(made)
    cheap = ["--first", "auto", "--set", "budget.evaluations=0", "--set", "judge.tune_plans=0"]
    ended = evo("run", "squash.py", "--device", "cpu", "--json", *cheap)
    assert ended.exit_code == 0, ended.output
    yield made
    os.chdir(before)


def test_a_brief_says_all_that_is_needed() -> None:
    brief = told(evo("ask", FILE))
    assert (
        "torch.tanh(x - 2.0 * y)" in brief["task"]["reference"]
        and brief["environment"] == "modeled for an H200 (sm_90)"
    )
    assert {case["kind"] for case in brief["task"]["cases"]} == {"check", "search"}  # hidden ones stay hidden
    assert "67" not in json.dumps(brief["task"])
    assert "def run(" in brief["parent"]["source"]
    (case,) = brief["parent"]["evaluation"]["cases"]
    assert case["us"] > 0 and case["features"]["kernels"][0]["registers"] > 0
    assert brief["strategies"] and all(one["key"] and one["does"] for one in brief["strategies"])
    assert f"tell {FILE} --attempt {brief['attempt']}" in brief["tell"]


def test_an_attempt_starts_from_the_candidate_that_is_asked_for() -> None:
    assert told(evo("ask", FILE, "--parent", 1))["parent"]["candidate"] == 1
    with pytest.raises(PopulationError, match="no candidate 99, but 1 to 1"):
        evo("ask", FILE, "--parent", 99)
    with pytest.raises(UserError, match="leave out --open"):
        evo("ask", FILE, "--parent", 1, "--open")


def test_a_ticket_outlives_processes_and_is_told_once(tmp_path: Path) -> None:
    brief = told(evo("ask", FILE, "--as", "someone"))
    other = told(evo("ask", FILE))
    assert other["attempt"] != brief["attempt"]
    (found,) = [one for one in told(evo("ask", FILE, "--open")) if one["attempt"] == brief["attempt"]]
    assert (found["holder"], found["state"], found["expires_at"]) == ("someone", "open", None)
    again = told(evo("ask", FILE, "--attempt", brief["attempt"]))
    assert again["parent"] == brief["parent"] and again["attempt"] == brief["attempt"]
    status = told(evo("status", FILE, "--json"))
    assert status["handed_out"] >= 2 and status["abandoned"] == 0 and status["open_attempts"] == 0
    mine = tmp_path / "mine.py"
    mine.write_text(brief["parent"]["source"] + "\n# touched\n")
    verdict = told(evo("tell", FILE, mine, "--attempt", brief["attempt"], "--strategy", "my own idea", "--json"))
    assert verdict["status"] == "passed" and verdict["score"] == pytest.approx(verdict["parent_score"])
    assert (verdict["witnessed"], verdict["is_best"]) == (False, False)  # the same plan as its parent's
    once_more = told(evo("tell", FILE, mine, "--attempt", brief["attempt"], "--json"))
    assert once_more["candidate"] == verdict["candidate"] and once_more["score"] == verdict["score"]
    with PopulationReader(FILE) as reader:
        view = reader.candidate(verdict["candidate"])
    assert len(view.evaluations) == 1 and view.attempt == brief["attempt"] and view.proposal.operator == "external"
    assert view.proposal.strategy is not None and view.proposal.strategy.name == "my own idea"
    with pytest.raises(PopulationError, match=f"show {FILE} {verdict['candidate']}"):
        evo("tell", FILE, "-", "--attempt", brief["attempt"], stdin="def run(x, y): return x\n")


def test_a_broken_kernel_is_a_verdict() -> None:
    attempt = told(evo("ask", FILE))["attempt"]
    ended = evo("tell", FILE, "-", "--attempt", attempt, "--json", stdin="def run(x, y):\n    return x\n")
    assert ended.exit_code == 1
    verdict = told(ended)
    assert verdict["status"] in ("wrong", "rejected") and verdict["reason"] and verdict["log_gain"] is None


def test_giving_up_is_kept() -> None:
    attempt = told(evo("ask", FILE))["attempt"]
    assert "given up" in evo("tell", FILE, "--attempt", attempt, "--fail", "no idea").output
    with PopulationReader(FILE) as reader:
        assert fetch_one(reader.connection, "SELECT reason FROM failures ORDER BY attempt DESC") == "no idea"
    with pytest.raises(PopulationError, match=r"given up \(no idea\). Ask for another"):
        evo("tell", FILE, "-", "--attempt", attempt, stdin="def run(x, y): return x\n")
    with pytest.raises(PopulationError, match="given up"):
        evo("tell", FILE, "--attempt", attempt, "--fail", "twice")


def test_giving_up_imports_nothing_slow() -> None:
    attempt = told(evo("ask", FILE))["attempt"]
    words = ["tell", FILE, "--attempt", attempt, "--fail", "no time"]
    code = (
        f"import sys; from evo_kernel.cli.main import cli; cli.main({words!r}, standalone_mode=False); "
        "print([m for m in ('torch', 'triton') if m in sys.modules])"
    )
    ended = child("-P", "-c", code, cwd=Path.cwd(), env={})
    assert "given up" in ended.stdout and ended.stdout.splitlines()[-1] == "[]", ended.stdout + ended.stderr


def test_an_interrupted_tell_keeps_what_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    brief = told(evo("ask", FILE))
    Path("cut.py").write_text(brief["parent"]["source"] + "\n# cut off\n")

    def cut(*arguments: object, **rest: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with monkeypatch.context() as within:
            within.setattr(external_session, "judged", cut)  # as if it came while the judge starts
            ended = evo("tell", FILE, "--attempt", brief["attempt"], "cut.py")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.exit_code == 130 and f"attempt {brief['attempt']} is kept" in ended.output
    assert told(evo("ask", FILE, "--attempt", brief["attempt"]))["attempt"] == brief["attempt"]
    evo("tell", FILE, "--attempt", brief["attempt"], "--fail", "it was cut off")


def test_a_ticket_expires() -> None:
    attempt = told(evo("ask", FILE, "--expires", 1e-7))["attempt"]
    time.sleep(0.01)
    with pytest.raises(PopulationError, match=r"has expired. Ask for a new one"):
        evo("tell", FILE, "-", "--attempt", attempt, stdin="def run(x, y): return x\n")
    assert attempt not in [one["attempt"] for one in told(evo("ask", FILE, "--open"))]
    assert told(evo("status", FILE, "--json"))["abandoned"] >= 1


@pytest.mark.parametrize("hours", ["1e8", "1e308", "inf", "nan"])
def test_a_ticket_ends_at_a_date_or_is_refused(hours: str) -> None:
    before = told(evo("ask", FILE, "--open"))
    assert evo("ask", FILE, "--expires", hours).exit_code == 2
    assert told(evo("ask", FILE, "--open")) == before


@pytest.mark.parametrize("key", ["search.selection.thompson=inf", "search.selection.uniform=1e308"])
def test_settings_that_no_population_holds_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="less than or equal to"):
        evo("resume", FILE, "--set", key)
    assert told(evo("status", FILE, "--json"))["best"]


def test_names_are_text() -> None:
    attempt = told(evo("ask", FILE))["attempt"]
    assert evo("ask", FILE, "--as", "\udcff").exit_code == 2
    for option in ("--fail", "--strategy", "--as"):
        ended = evo("tell", FILE, "--attempt", attempt, option, "\udcff")
        assert ended.exit_code == 2 and "no valid UTF-8" in ended.output


def test_two_who_tell_at_the_same_moment_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    brief, lock = told(evo("ask", FILE)), OwnerLock(Path(FILE))
    monkeypatch.setattr(connect, "owner", lambda path: None)  # as it was before the other one began
    release = threading.Timer(5.0, lock.release)
    release.start()
    try:
        source = brief["parent"]["source"] + "\n# the second\n"
        assert evo("tell", FILE, "-", "--attempt", brief["attempt"], stdin=source).exit_code == 0
        assert not release.is_alive()
    finally:
        release.cancel()
        lock.release()


def test_mistakes_say_what_to_do() -> None:
    attempt = told(evo("ask", FILE))["attempt"]
    with pytest.raises(PopulationError, match=r"not handed out by `evo-kernel ask`. Open tickets: .*\d"):
        evo("tell", FILE, "-", "--attempt", 999, stdin="def run(x): return x\n")
    with pytest.raises(UserError, match="either a FILE"):
        evo("tell", FILE, "--attempt", attempt)
    with pytest.raises(UserError, match="standard input is empty"):
        evo("tell", FILE, "-", "--attempt", attempt, stdin="")
    with pytest.raises(UserError, match=r"cannot read missing.py"):
        evo("tell", FILE, "missing.py", "--attempt", attempt)
    lock = OwnerLock(Path(FILE))
    try:
        with pytest.raises(PopulationLocked, match="is in use by process"):
            evo("ask", FILE, "--wait", 0)
        with pytest.raises(PopulationLocked, match="is in use by process"):
            evo("tell", FILE, "-", "--attempt", attempt, "--wait", 0.3, stdin="def run(x): return x\n")
    finally:
        lock.release()


def test_a_resume_leaves_tickets_open() -> None:
    attempt = told(evo("ask", FILE))["attempt"]
    ended = evo("resume", FILE, "--json")
    assert ended.exit_code == 0, ended.output
    assert attempt in [one["attempt"] for one in told(evo("ask", FILE, "--open"))]
