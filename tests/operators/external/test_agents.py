"""Agents that are not ours: real processes in real folders, our MCP server and a real population; only the judge is
scripted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

from evo_kernel.app.mcp_tools import over_http
from evo_kernel.app.workbench import PopulationLineage, open_workbench, rooms_of
from evo_kernel.budget import Budget, Ledger
from evo_kernel.engine import Engine, EngineSettings
from evo_kernel.errors import OperatorFailed, PopulationError
from evo_kernel.types import Proposal, Purpose, Source
from operators.external import ExternalAttempt, ExternalOperator, ExternalSettings
from operators.knowledge.base import KnowledgeBase
from operators.workbench.judge_tools import Allowed
from populations.population import LineagePopulation, open_population
from populations.reading import PopulationReader
from tests.support.scripted import CARD, ENVIRONMENT, TASK, Notebook, ScriptedJudge, scored

ROOT = Path(__file__).resolve().parents[3]
FIRST = Source("time_us = 100.0\n\n\ndef run(x):\n    return x\n")
FASTER = "sed -i 's/100.0/50.0/' kernel.py"
SUBMIT = """tool submit '{"strategy": "shave", "idea": "half the time"}'"""
STUB = """
import json, os, sys, urllib.request
call = {"name": sys.argv[1], "arguments": json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")}
data = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
url = json.load(open(".mcp.json"))["mcpServers"]["evo-kernel"]["url"]
assert url == os.environ["EVO_KERNEL_MCP"]
head = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
said = json.load(urllib.request.urlopen(urllib.request.Request(url, data, head)))
if "error" in said:
    sys.exit(f"error: {said['error']['message']}")
print(said["result"]["content"][0]["text"])
sys.exit(said["result"]["isError"])
"""
"""A scripted agent's hand: `tool NAME '{...}'` calls a tool of the MCP server that its folder names."""


class Judge(ScriptedJudge):
    def profile(self, source: Source, *rest: object) -> dict:
        return {}


@dataclass
class Setting:
    """An operator over a population of one kernel."""

    population: LineagePopulation
    folder: Path

    def operator(self, command: str, **settings: object) -> ExternalOperator:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "stub.py").write_text(STUB)
        rooms = rooms_of(self.population, Judge(), KnowledgeBase(api=False), lambda spent: None)
        command = f'tool() {{ {sys.executable} -IS ../stub.py "$@"; }}\n{command}'
        chosen = ExternalSettings(command, **{"minutes": 0.5, "settle_s": 0.3} | settings)  # type: ignore[arg-type]
        return ExternalOperator(chosen, self.folder, rooms, self.population.diary, over_http)

    def propose(self, command: str, **settings: object) -> Proposal:
        return self.operator(command, **settings).propose(self.population.ask(), lambda source: None)

    def failure(self, command: str, **settings: object) -> str:
        with pytest.raises(OperatorFailed) as caught:
            self.propose(command, **settings)
        assert caught.value.operator == "external"
        return caught.value.reason

    def log(self) -> str:
        (log,) = self.folder.glob("*.log")
        return log.read_text()


def planted(path: Path) -> LineagePopulation:
    population = open_population(path, task=CARD, task_identity=TASK, environment=ENVIRONMENT, seed=1)
    recorded = population.plant(FIRST)
    if population.best() is None:
        population.tell(recorded, scored(FIRST, Purpose.SCORE))
    return population


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with planted(tmp_path / "p.db") as population:
        yield Setting(population, tmp_path / "p.db.agents")


def processes(marker: str) -> list[psutil.Process]:
    return [
        one
        for one in psutil.process_iter(["cmdline", "status"])
        if marker in " ".join(one.info["cmdline"] or ()) and one.info["status"] != "zombie" and one.pid != os.getpid()
    ]


def gone(marker: str, within_s: float = 10.0) -> bool:
    until = time.monotonic() + within_s
    while processes(marker) and time.monotonic() < until:
        time.sleep(0.05)
    return not processes(marker)


# ---- what is meant to happen ----------------------------------------------------------------------------------------


def test_what_an_agent_submits_becomes_a_proposal(setting: Setting) -> None:
    proposal = setting.propose(
        f'{FASTER}; tool probe; tool evaluate \'{{"idea": "half"}}\'; {SUBMIT}; echo committed $?'
    )
    assert proposal.source.text == FIRST.text.replace("100.0", "50.0") and proposal.operator == "external"
    assert proposal.strategy is not None and (proposal.strategy.name, proposal.probes) == ("shave", 0)
    assert [step.action.split(":")[0].split()[0] for step in proposal.steps] == ["probe", "evaluate", "submit"]
    assert {step.outcome for step in proposal.steps} == {"kept"}
    assert "committed 0" in setting.log() and "gate: would pass" in setting.log()
    assert {path.name for path in setting.folder.iterdir()} == {"attempt-2.log", "stub.py"}  # the workspace is gone
    spent = setting.population.counters().evaluations
    assert spent["probe"] == 1 and spent["score"] >= 2 and spent["confirm"] == 1  # booked, though not told yet


def test_the_engine_takes_it_like_any_operator(setting: Setting) -> None:
    # Each attempt beats its own parent: the time is halved whatever it was.
    command = f"""python3 - <<'END'
text = open("kernel.py").read()
old = text.split("=")[1].split()[0]
open("kernel.py", "w").write(text.replace(old, str(float(old) / 2)))
END
{SUBMIT}"""
    engine = Engine(
        setting.population, setting.operator(command), Judge(), Ledger(Budget()), EngineSettings(attempts=3)
    )
    ended = engine.run()
    assert (ended.attempts, ended.why, ended.cause) == (3, "3 attempts made", "budget")
    best = setting.population.best()
    assert best is not None and best.evaluation is not None and best.evaluation.score > 1.9
    with PopulationReader(setting.population.path) as reader:
        assert reader.candidate(best.candidate).proposal.operator == "external"


def test_a_refused_submission_is_told_why_and_the_agent_goes_on(setting: Setting) -> None:
    out = """tool submit '{"strategy": "aaa", "idea": "bbb", "path": "../kernel.py"}'"""
    reason = setting.failure(f"sed -i s/100.0/120.0/ kernel.py; {SUBMIT}; {out}")
    assert reason.startswith("the agent ended (exit code 1) with nothing committed, 1 evaluation made")
    assert "Not committed. Its gain over the version to beat is not sure" in setting.log()
    assert "`..` is not allowed" in setting.log()


def test_evaluations_are_limited(setting: Setting) -> None:
    again = """tool evaluate '{"idea": "again"}'"""
    command = f'for n in 91 92 93; do sed -i "s/= .*/= $n.0/" kernel.py; {again}; done'
    setting.failure(command, allowed=Allowed(evaluations=2))
    assert "the attempt's 2 calls of evaluate are used up" in setting.log()


def test_the_environment_is_a_clean_one(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_OURS", "very-secret")
    setting.failure("env; cat", environment={"AGENT_KEY": "given"})
    log = setting.log()
    assert "very-secret" not in log and "AGENT_KEY=given" in log
    assert f"HOME={setting.folder}/attempt-2/.home" in log and os.environ["HOME"] + "\n" not in log


def test_the_readme_is_enough(setting: Setting) -> None:
    setting.failure("cat README.md; ls task kernel.py", minutes=12.5, allowed=Allowed(evaluations=7))
    text = setting.log()
    assert "You have 12.5 minutes, and at most 7 evaluations" in text
    assert "version C1, score 1.000" in text and "surely faster than the version to beat, version C1" in text
    for word in ("`.mcp.json`", "$EVO_KERNEL_MCP", "`probe`", "`submit`", "`refute_note`", "Source of the parent"):
        assert word in text
    for word in ("kernel.py", "task.md", "reference.py"):
        assert f"\n{word}\n" in text


def test_an_agent_with_the_sdk_lists_and_calls_the_tools(setting: Setting) -> None:
    agent = """
import asyncio, os
from mcp import Client
async def work():
    async with Client(os.environ["EVO_KERNEL_MCP"]) as client:
        print(client.instructions, sorted(tool.name for tool in (await client.list_tools()).tools))
        print((await client.call_tool("lineage", {})).content[0].text)
asyncio.run(work())
"""
    setting.folder.mkdir()
    (setting.folder / "agent.py").write_text(agent)
    setting.failure(f"{sys.executable} ../agent.py")
    log = setting.log()
    assert "README.md in your folder" in log and "'diff_versions'" in log and "C1 [seed]" in log


def test_what_our_side_breaks_is_said_and_the_agent_goes_on(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ExternalAttempt.call

    def call(self: ExternalAttempt, tool: str, arguments: object) -> object:
        if tool == "notes":
            raise OSError("the disk is full")
        return real(self, tool, arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ExternalAttempt, "call", call)
    setting.failure("""mkdir folder; tool probe '{"path": "folder"}'; tool notes; echo "then $?"; tool lineage""")
    log = setting.log()
    assert "folder is no file" in log and "error: " in log and log.count("then 1\n") == 1 and "C1 [seed]" in log


# ---- what is not --------------------------------------------------------------------------------------------------


def test_an_agent_that_submits_nothing(setting: Setting) -> None:
    reason = setting.failure("echo I give up")
    assert reason == (
        "the agent ended (exit code 0) with nothing committed, 0 evaluations made; it last said: I give up"
    )
    assert "exit code 127" in setting.failure("no-such-agent --now")


def test_an_agent_past_its_deadline(setting: Setting) -> None:
    began = time.monotonic()
    reason = setting.failure("trap '' TERM; echo busy; sleep 7771", minutes=0.5 / 60)
    assert reason.startswith("the agent was ended after 0.00833333 minutes with nothing committed")
    assert time.monotonic() - began < 15 and gone("7771")


def test_nothing_that_an_agent_started_survives_it(setting: Setting) -> None:
    daemon = "import os,time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nif os.fork(): os._exit(0)\\ntime.sleep(7772)"
    command = f"setsid sleep 7772 & (sleep 7772 &) ; python3 -c \"$(printf '{daemon}')\"; sleep 0.3"
    setting.failure(command)
    assert gone("7772", 1.0)


def test_a_fork_bomb_ends(setting: Setting) -> None:
    setting.failure("n=0; while [ $n -lt 150 ]; do sleep 7773 & n=$((n+1)); done; sleep 7773", minutes=1 / 60)
    assert gone("7773", 1.0)


def test_output_is_bounded(setting: Setting) -> None:
    began = time.monotonic()
    setting.failure("echo first; head -c 60000000 /dev/zero | tr '\\0' 'x'; echo; echo last", log_bytes=100_000)
    log = setting.log()
    assert log.startswith("first") and log.endswith("last\n") and "bytes left out" in log
    assert len(log) < 101_000 and time.monotonic() - began < 20


def test_a_log_on_a_full_disk_costs_the_log_alone(setting: Setting) -> None:
    setting.folder.mkdir(exist_ok=True)
    (setting.folder / "attempt-2.log").symlink_to("/dev/full")
    loud = "head -c 9000000 /dev/zero"
    proposal = setting.propose(f"{loud}; {FASTER}; {SUBMIT}; {loud}")
    assert "50.0" in proposal.source.text


def test_a_workspace_that_cannot_be_made_costs_the_attempt_and_not_the_run(setting: Setting) -> None:
    setting.folder.mkdir(exist_ok=True)
    (setting.folder / "attempt-3").symlink_to(
        "/dev/full/nothing"
    )  # the second attempt's: as little room as a full disk
    operator, heard = setting.operator(f"{FASTER}; {SUBMIT}"), Notebook()
    settings = EngineSettings(attempts=3, infra_wait_s=0.0)
    ended = Engine(setting.population, operator, Judge(), Ledger(Budget()), settings, heard).run()
    assert (ended.cause, ended.attempts) == ("budget", 3)
    (why,) = [reason for reason in ended.failures if "the machine failed" in reason]
    assert "attempt-3 cannot be used" in why
    assert [line for line in heard.lines if line.startswith("failed 3: the machine failed")]
    assert ended.best is not None and ended.best.evaluation is not None and (ended.best.evaluation.score or 0) > 1.9


def test_an_agent_that_kills_its_keeper(setting: Setting) -> None:
    began = time.monotonic()
    reason = setting.failure("sleep 7774 & kill -9 $PPID; sleep 7774", minutes=10)
    assert reason.startswith("the agent was lost") and time.monotonic() - began < 60
    assert gone("7774", 5.0)


def test_noise_holds_up_nobody(setting: Setting) -> None:
    noise = """
import os, urllib.error, urllib.request
head = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
for data in (b"no json", b"[" * 100000, b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": 3}'):
    try:
        urllib.request.urlopen(urllib.request.Request(os.environ["EVO_KERNEL_MCP"], data, head))
    except urllib.error.HTTPError as error:
        print("refused", error.code)
"""
    setting.folder.mkdir()
    (setting.folder / "noise.py").write_text(noise)
    wrong = """tool no_such; tool evaluate '{"idea": 3}'; tool probe '{"path": "\\ud800"}'"""
    proposal = setting.propose(f"{sys.executable} -IS ../noise.py; {wrong}; {FASTER}; {SUBMIT}")
    log = setting.log()
    assert proposal.source.text != FIRST.text and log.count("refused 4") >= 2
    assert "there is no tool 'no_such'" in log and "evaluate do not fit" in log and "HTTP Error 400" in log


def test_a_workspace_cannot_lead_out(setting: Setting, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("# very-secret\ndef run(x): return x\n")
    command = f"""ln -s {tmp_path}/secret.py link.py; tool probe '{{"path": "link.py"}}'"""
    setting.failure(command)
    assert "very-secret" not in setting.log() and "links and folders are not followed" in setting.log()


def test_a_killed_run_takes_its_agents_with_it_and_counts_what_was_spent(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tests.operators.external.test_agents import Setting, planted
population = planted(Path({str(tmp_path)!r}) / "p.db")
setting = Setting(population, Path({str(tmp_path)!r}) / "agents")
evaluate = "tool evaluate '{{\\"idea\\": \\"some gain\\"}}'"
setting.propose("sed -i s/100.0/90.0/ kernel.py; " + evaluate + "; echo up > ../up; sleep 7775", minutes=5)
"""
    child = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    until = time.monotonic() + 60
    while not (tmp_path / "agents" / "up").exists():
        assert child.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert gone("7775")
    with planted(tmp_path / "p.db") as population:
        assert population.counters().evaluations["score"] == 2  # the seed's and the agent's
        brief = population.ask()
        assert brief.attempt == 2  # the attempt goes on
        rooms = rooms_of(population, Judge(), None, lambda spent: None)
        bench = open_workbench(tmp_path / "w", rooms, brief, "external", Allowed(evaluations=4))
        attempt = ExternalAttempt(brief, bench, population.diary, "external")
        assert "left: 3 evaluations" in bench.left() and len(attempt.steps) == 1


def test_secrets_are_not_shown() -> None:
    assert "very-secret" not in repr(ExternalSettings("sh", environment={"KEY": "very-secret"}))


def test_agents_are_told_no_paths_of_the_host(setting: Setting) -> None:
    lineage = PopulationLineage(setting.population)
    assert lineage.version(1).candidate == 1
    for ask in (lambda: lineage.version(2), lambda: lineage.versions(3, "path", 7)):
        with pytest.raises(PopulationError, match=r"there is no version C\d; they are numbered 1 to 1") as caught:
            ask()
        assert str(setting.folder.parent) not in str(caught.value)
