"""One attempt after another, for whoever holds the tools from outside: a submission becomes a candidate, and the next
attempt begins.

An attempt is a ticket: when this process ends in the middle, the next one goes on with it, files and counts as they
were.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evo_kernel.app.external_session import ExternalSession
from evo_kernel.app.workbench import open_workbench, rooms_of
from operators.external import ExternalAttempt, brief_text, limits_text
from operators.knowledge.base import KnowledgeBase
from operators.workbench.judge_tools import Allowed
from operators.workbench.toolset import ToolOutcome
from populations.reading import PopulationReader

OPERATOR = "external"
HOLDER = "mcp"


class McpSession:
    """Thread-safe. `folder`: below it each attempt has its files."""

    def __init__(
        self,
        session: ExternalSession,
        folder: Path,
        allowed: Allowed,
        knowledge: KnowledgeBase | None,
    ) -> None:
        self._session, self._population, self._folder = session, session.population, folder
        self._allowed, self._knowledge = allowed, knowledge
        # What is spent is booked turn by turn.
        self._rooms = rooms_of(self._population, session.parts.judge, knowledge, lambda spent: None)
        self._lock = threading.Lock()
        for recorded in self._population.pending():  # what an earlier process left unjudged: parents need evidence
            session.judge(recorded)
        self._begin()

    @property
    def number(self) -> int:
        return self.attempt.brief.attempt

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """What a tool answers; where it ends the attempt, what came of that and of the next one stands in the text."""
        outcome = self.attempt.call(tool, arguments)  # not under our lock: what only reads waits for no judge
        if outcome.submission is None:
            return outcome
        with self._lock:  # an attempt commits once
            return ToolOutcome(f"{outcome.text}\n{self._committed()}", submission=outcome.submission)

    def brief(self) -> str:
        """All that an agent must know of the attempt at hand."""
        with self._lock:
            head = f"# Attempt {self.number}: {limits_text(self._allowed)}\n{self.attempt.bench.left()}"
            brief = self.attempt.brief
            return f"{head}\n\n{brief_text(brief, self._knowledge)}"

    def give_up(self, reason: str) -> str:
        """End the attempt with nothing, and begin another one."""
        with self._lock:
            over = self.number
            self.attempt.close()
            if self.attempt.submission is not None:
                return f"Attempt {over} has just committed a version: there is nothing to give up. Read `brief` again."
            self._population.fail(self.attempt.brief, OPERATOR, reason)
            return f"Attempt {over} is given up. {self._next()}"

    # ---- within ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        with PopulationReader(self._population.path) as reader:
            mine = [one.attempt for one in reader.tickets() if one.holder == HOLDER]
        brief = self._population.ticket(mine[0])[0] if mine else self._population.ask(HOLDER)
        folder = self._folder / f"attempt-{brief.attempt}"
        bench = open_workbench(folder, self._rooms, brief, OPERATOR, self._allowed, adopt=folder.is_dir())
        self.attempt = ExternalAttempt(brief, bench, self._population.diary, OPERATOR)
        if self.attempt.submission is not None:  # the process ended between the gate and the candidate
            self._committed()

    def _committed(self) -> str:
        told = self._session.submit(self.attempt.brief, self.attempt.proposal())
        gain = f", {told.gain_text}" if told.gain_text else ""
        return f"It is version C{told.recorded.candidate}{gain}. {self._next()}"

    def _next(self) -> str:
        """Begin the next attempt; what to do about it."""
        shutil.rmtree(self._folder / f"attempt-{self.number}", ignore_errors=True)
        self._begin()
        parent = self.attempt.brief.parent.candidate
        return (
            f"Attempt {self.number} has begun: kernel.py holds version C{parent} now, and every limit starts anew. "
            "Read `brief` again."
        )
