"""Attempts of coding agents that are not ours, which are given the workbench over MCP.

Each tool call is durable, with what it cost, before its answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evo_kernel.types import Brief, Proposal, Source, Step, Strategy
from evo_kernel.types.protocols import TurnStore
from operators.knowledge.base import KnowledgeBase
from operators.llm.base import sound
from operators.prompts.parts import joined
from operators.prompts.writer import Prompts
from operators.workbench.judge_tools import Allowed
from operators.workbench.tool import Submission
from operators.workbench.toolset import ToolOutcome, Workbench

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
