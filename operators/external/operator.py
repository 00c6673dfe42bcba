"""Any command-line coding agent as a variation operator."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evo_kernel import processes
from evo_kernel.errors import InfraError, OperatorFailed
from evo_kernel.processes import BoundedOutput, Ended
from evo_kernel.types import Brief, Credit, Evaluation, Probe, Proposal, TaskCard
from evo_kernel.types.protocols import TurnStore
from operators.external.attempt import TOOL, ExternalAttempt
from operators.external.folder import environment_for, furnish
from operators.external.request_server import RequestServer
from operators.macro import catalogue
from operators.workbench.judge_tools import Allowed
from operators.workbench.toolset import Workbench, WorkbenchDeps

OpenBench = Callable[[Path, Brief, str, Allowed], Workbench]
"""(folder, brief, author, allowed) → a workbench in that folder."""
TERM_S = 3.0
"""Between SIGTERM and SIGKILL, at a deadline."""


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

    def __post_init__(self) -> None:
        if not self.command.strip():
            raise ValueError("an external agent needs a command, such as 'my-agent --prompt-file README.md'")
        if not (math.isfinite(self.minutes) and self.minutes > 0):
            raise ValueError(f"an attempt needs some minutes, not {self.minutes}")


class ExternalOperator:
    """Thread-safe: every attempt has a folder, a desk and processes of its own. `folder`: below it they lie."""

    def __init__(
        self,
        settings: ExternalSettings,
        folder: Path,
        open_bench: OpenBench,
        rooms: WorkbenchDeps,
        diary: TurnStore,
        name: str = "external",
        elsewhere: Callable[[TaskCard], str] = lambda task: "",
    ) -> None:
        """`elsewhere`: what other populations have to say (`Prompts.elsewhere`)."""
        self.name = name
        self._settings, self._folder, self._open_bench = settings, folder, open_bench
        self._rooms, self._diary, self._elsewhere = rooms, diary, elsewhere

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        """Let the agent work until it has committed, ended, or used its time up. Raises OperatorFailed, InfraError."""
        del probe  # the workbench has the judge
        workspace = (self._folder / f"attempt-{brief.attempt}").absolute()
        try:
            workspace.parent.mkdir(parents=True, exist_ok=True)
            bench = self._open_bench(workspace, brief, self.name, self._settings.allowed)
            attempt = ExternalAttempt(brief, bench, self._diary, self.name)
            why = self._run(attempt, workspace) if attempt.submission is None else ""
            attempt.close()  # a call under way when it was ended is carried to its end, and counts
        except OSError as error:
            raise InfraError(f"the workspace {workspace} cannot be used: {error}") from error  # fails this attempt
        finally:
            if not self._settings.keep:
                shutil.rmtree(workspace, ignore_errors=True)
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
        del credit

    def _run(self, attempt: ExternalAttempt, workspace: Path) -> str:
        """How it ended, should nothing be committed, in a sentence."""
        settings, brief = self._settings, attempt.brief
        place = furnish(
            workspace, brief, attempt.bench.tools, settings.allowed, settings.minutes,
            self._rooms.lineage, self._rooms.knowledge, self._elsewhere(brief.task), self._rooms.bench.regress,
        )  # fmt: skip
        log = self._folder / f"attempt-{brief.attempt}.log"
        with open(log, "wb", buffering=0) as file, RequestServer(place, attempt.call):
            output = BoundedOutput(file, settings.log_bytes)
            ended = processes.run(
                ["/bin/sh", "-c", settings.command], settings.minutes * 60, output.take,
                environment_for(workspace, settings.environment), workspace, attempt.over_for(settings.settle_s),
                TERM_S,
            )  # fmt: skip
            output.finish()
        return self._why(ended, _last_line(log), len(attempt.steps))

    def _why(self, ended: Ended, said: str, tries: int) -> str:
        how = {
            "exited": f"the agent ended (exit code {ended.code})",
            "deadline": f"the agent was ended after {self._settings.minutes:g} minutes",
            "stopped": "the agent was stopped",
            "lost": "the agent was lost",
        }[ended.how]
        last = f"; it last said: {said}" if said else ""
        return f"{how} with nothing committed, {tries} evaluation{'s' * (tries != 1)} made{last}"


def _last_line(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(os.path.getsize(log) - 600, 0))
        lines = file.read(600).decode("utf-8", "replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
