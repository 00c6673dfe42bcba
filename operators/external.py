"""Coding agents that are not ours as an operator: a command is started in a folder and given the workbench over MCP.

Each tool call is durable, with what it cost, before its answer.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evo_kernel import processes
from evo_kernel.errors import InfraError, OperatorFailed
from evo_kernel.types import Brief, Credit, Evaluation, Probe, Proposal, ScoredCandidate, Source, Step, Strategy
from evo_kernel.types.protocols import TurnStore
from operators.knowledge.base import KnowledgeBase
from operators.llm.base import sound
from operators.macro import catalogue
from operators.prompts.parts import joined
from operators.prompts.writer import Prompts
from operators.workbench.judge_tools import Allowed
from operators.workbench.tool import Submission, WorkbenchDeps
from operators.workbench.toolset import ToolOutcome, Workbench, start_files, task_files
from operators.workbench.workspace import Workspace

TOOL = "external tool"
"""Kind of a turn in the diary."""
LONGEST = 2000  # characters of a call's arguments that are kept


class ExternalAttempt:
    """Thread-safe: calls may come in any thread; see Workbench for those that wait for each other."""

    def __init__(self, brief: Brief, bench: Workbench, diary: TurnStore, operator: str) -> None:
        """Stands where an earlier process left the attempt, if there was one."""
        self.brief, self.bench = brief, bench
        self._diary, self._operator = diary, operator
        self._steps: list[Step] = []
        for kind, data in diary.turns(brief.attempt):
            if kind == TOOL:
                outcome = ToolOutcome.from_data(data["outcome"])
                bench.restore(outcome)
                self._note(data["tool"], outcome)

    def call(self, tool: str, arguments: str | Mapping[str, Any]) -> ToolOutcome:
        """What came of it; never raises for what an agent does."""
        given = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), default=str)

        def keep(outcome: ToolOutcome) -> None:
            data = {"tool": sound(tool[:100]), "arguments": sound(given[:LONGEST]), "outcome": outcome.as_data()}
            self._diary.append(self.brief.attempt, TOOL, data, charged=dict(outcome.charged), gpu_s=outcome.gpu_s)
            self._note(tool, outcome)

        return self.bench.call(tool, arguments, keep)

    @property
    def submission(self) -> Submission | None:
        """What passed the gate; with it the attempt is over."""
        return self.bench.submission

    def close(self) -> None:
        """Wait for calls that are under way; later ones are refused."""
        self.bench.close("the attempt is over, nothing more can be done in it")

    def over_for(self, seconds: float) -> Callable[[], bool]:
        """Tells whether the attempt has been over for so long."""
        since: list[float] = []

        def over() -> bool:
            if self.submission is not None and not since:
                since.append(time.monotonic())
            return bool(since) and time.monotonic() - since[0] >= seconds

        return over

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every evaluation, probe and submission, in their order."""
        return tuple(self._steps)

    def proposal(self) -> Proposal:
        """What was submitted. Its evaluations are booked already, turn by turn."""
        found = self.submission
        if found is None:
            raise ValueError(f"attempt {self.brief.attempt} has no submission")
        parents = [("parent", self.brief.parent.candidate), *(("inspiration", number) for number in found.parents)]
        return Proposal(
            source=Source(found.text, found.language),
            operator=self._operator,
            strategy=Strategy(found.strategy, found.family),
            parents=tuple(parents) if found.parents else (),
            steps=self.steps,
        )

    def _note(self, tool: str, outcome: ToolOutcome) -> None:
        facts = outcome.facts
        if "evaluation" not in facts:
            return
        kept = facts["status"] == "passed" and "refused" not in facts
        action = f"{tool} {facts['evaluation']}" + (f": {facts['idea']}" if facts.get("idea") else "")
        detail = facts.get("refused") or facts.get("reason", "")
        self._steps.append(Step(action, "kept" if kept else "rolled back", str(detail)[:300], outcome.wall_s))


def brief_text(brief: Brief, knowledge: KnowledgeBase | None = None) -> str:
    """Rules, hardware, task, then the parent with its evidence, relatives, what was tried, passages."""
    prompts = Prompts(knowledge=knowledge)
    source = brief.parent.source
    prefix = prompts.system(brief.task, brief.environment).content
    query = f"{brief.task.name} {brief.task.description}"
    return f"{prefix}\n\n{joined(prompts.situation(brief, source, query=query))}\n"


def limits_text(allowed: Allowed) -> str:
    """What an attempt may ask for, in a line."""
    return (
        f"at most {allowed.evaluations} evaluations, {allowed.probes} probes, {allowed.profiles} profiles and "
        f"{allowed.submits} submissions in this attempt"
    )


Serve = Callable[[ExternalAttempt], AbstractContextManager[str]]
"""Serves the tools of an attempt over MCP while it is open; gives the server's URL."""
TERM_S = 3.0  # between SIGTERM and SIGKILL, at a deadline
MCP_CONFIG, MCP_URL = ".mcp.json", "EVO_KERNEL_MCP"

README = """# Make this GPU kernel faster

`kernel.py` in this folder is a GPU kernel that is correct: {start}. Write a faster one, and hand it in with the tool
`submit`. Only what you submit counts, and only once it is committed: correct on every case, hidden ones included,
surely faster than the version to beat, {beat}, and on no shape, hidden ones included, more than {regress:.0%} slower.

You have {minutes:g} minutes, and {limits}.

Your tools are those of the MCP server `evo-kernel` (`{config}` in this folder, or the URL in ${url}):

1. Read this file, `task/task.md`, `task/reference.py` and `kernel.py`.
2. Change `kernel.py` (or write another file in this folder).
3. `probe` compiles it and checks it on small inputs: seconds. Repair what it says.
4. `evaluate` also tunes and times it, and says what the gate would say.
5. `submit` hands it in. If it is refused you are told why: go on. If it is committed, your work is done: stop.

Others: {tools}.

A note cites what it rests on: the name of an evaluation or version (`E4.1`, `C2`) and the number that its answer calls
"samples a case" (0 where times are modeled).

Hidden shapes may be odd, or fill no block. A branch of `run` that no shown shape takes is not tuned: give its knobs
values that are good already.

There may be no GPU here, and no torch: do not run the kernel yourself, ask `probe`. Do not look for the judge or the
inputs: sources that do anything but compute are refused.

"""


@dataclass(frozen=True)
class ExternalSettings:
    """`command`: run by /bin/sh in the workspace. `environment`: what it is given beyond a clean one."""

    command: str
    minutes: float = 30.0  # of one attempt
    allowed: Allowed = field(default_factory=Allowed)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    settle_s: float = 20.0  # that it may go on after a commit
    log_bytes: int = 4 * 2**20  # of its output that are kept
    keep: bool = False  # the workspace, when the attempt is over


class ExternalOperator:
    """Thread-safe: every attempt has a folder, a server and processes of its own. `folder`: below it they lie."""

    def __init__(
        self,
        settings: ExternalSettings,
        folder: Path,
        rooms: WorkbenchDeps,
        diary: TurnStore,
        serve: Serve,
        name: str = "external",
    ) -> None:
        self.name = name
        self._settings, self._folder, self._serve = settings, folder, serve
        self._rooms, self._diary = rooms, diary

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        """Let the agent work until it has committed, ended, or used its time up. Raises OperatorFailed, InfraError."""
        del probe  # the workbench has the judge
        folder = (self._folder / f"attempt-{brief.attempt}").absolute()
        try:
            workspace = Workspace(folder, start_files(brief.parent.source), task_files(brief))
            bench = Workbench(workspace, self._rooms, brief, self.name, self._settings.allowed)
            attempt = ExternalAttempt(brief, bench, self._diary, self.name)
            why = self._run(attempt, folder) if attempt.submission is None else ""
            attempt.close()  # a call under way when it was ended is carried to its end, and counts
        except OSError as error:
            raise InfraError(f"the workspace {folder} cannot be used: {error}") from error  # fails this attempt
        finally:
            if not self._settings.keep:
                shutil.rmtree(folder, ignore_errors=True)
        if attempt.submission is not None:
            return attempt.proposal()
        raise OperatorFailed(why, operator=self.name, steps=attempt.steps)

    def holds(self, brief: Brief) -> bool:
        """Whether this attempt was begun here: its evaluations were made in this operator's name."""
        return next((kind for kind, _ in self._diary.turns(brief.attempt)), None) == TOOL

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return catalogue.witnessed(proposal.strategy, parent, child)

    def learn(self, credit: Credit) -> None:
        """An agent from outside learns from the lineage that it is shown."""

    def _run(self, attempt: ExternalAttempt, folder: Path) -> str:
        """How it ended, should nothing be committed, in a sentence."""
        settings = self._settings
        (folder / "README.md").write_text(self._readme(attempt), encoding="utf-8")
        log = self._folder / f"attempt-{attempt.brief.attempt}.log"
        with open(log, "wb", buffering=0) as file, self._serve(attempt) as url:
            server = {"mcpServers": {"evo-kernel": {"type": "http", "url": url}}}
            (folder / MCP_CONFIG).write_text(json.dumps(server, indent=2), encoding="utf-8")
            output = processes.BoundedOutput(file, settings.log_bytes)
            ended = processes.run(
                ["/bin/sh", "-c", settings.command], settings.minutes * 60, output.take,
                _environment(folder) | {MCP_URL: url, **settings.environment}, folder,
                attempt.over_for(settings.settle_s), TERM_S,
            )  # fmt: skip
            output.finish()
        how = {
            "exited": f"the agent ended (exit code {ended.code})",
            "deadline": f"the agent was ended after {settings.minutes:g} minutes",
            "stopped": "the agent was stopped",
            "lost": "the agent was lost",
        }[ended.how]
        said, tries = _last_line(log), len(attempt.steps)
        last = f"; it last said: {said}" if said else ""
        return f"{how} with nothing committed, {tries} evaluation{'s' * (tries != 1)} made{last}"

    def _readme(self, attempt: ExternalAttempt) -> str:
        rooms, brief = self._rooms, attempt.brief
        said = README.format(
            minutes=self._settings.minutes, regress=rooms.bench.regress, limits=limits_text(self._settings.allowed),
            start=_scored(brief.parent), beat=_scored(rooms.lineage.best() if rooms.lineage is not None else None),
            config=MCP_CONFIG, url=MCP_URL, tools=", ".join(f"`{name}`" for name in attempt.bench.tools),
        )  # fmt: skip
        return said + brief_text(brief, rooms.knowledge)


def _environment(folder: Path) -> dict[str, str]:
    """A clean one: what is needed to find programs, a home and a scratch folder of its own."""
    home, scratch = folder / ".home", folder / ".tmp"
    for place in (home, scratch):
        place.mkdir(mode=0o700, exist_ok=True)
    return {
        "PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "TMPDIR": str(scratch), "LANG": "C.UTF-8",
        "TERM": "dumb",
    }  # fmt: skip


def _scored(version: ScoredCandidate | None) -> str:
    if version is None:
        return "the best one known"
    score = version.evaluation.score if version.evaluation is not None else None
    return f"version C{version.candidate}, " + (f"score {score:.3f}" if score is not None else "not scored")


def _last_line(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(os.path.getsize(log) - 600, 0))
        lines = file.read(600).decode("utf-8", "replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
