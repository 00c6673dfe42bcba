"""One attempt after another, for whoever holds the tools from outside: a submission becomes a candidate, and the next
attempt begins.

An attempt is a ticket: when this process ends in the middle, the next one goes on with it, files and counts as they
were.
"""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evo_kernel.app.compose import Prepared
from evo_kernel.app.external_session import TellResult, judge_and_tell
from evo_kernel.app.workbench import open_workbench, rooms_of
from evo_kernel.types import TaskCard
from operators.external.attempt import ExternalAttempt
from operators.external.brief import brief_text, limits_text
from operators.workbench.bench import ToolOutcome
from operators.workbench.judge_tools import Allowed
from operators.workbench.protocols import KnowledgeSource
from populations.reading import PopulationReader

OPERATOR = "external"


class Shift:
    """Thread-safe. `folder`: below it each attempt has its files."""

    def __init__(
        self,
        parts: Prepared,
        folder: Path,
        holder: str,
        allowed: Allowed,
        knowledge: KnowledgeSource | None,
        elsewhere: Callable[[TaskCard], str] = lambda task: "",
    ) -> None:
        """`elsewhere`: what other populations have to say (`Prompts.elsewhere`)."""
        self._parts, self._folder, self._holder, self._allowed = parts, folder, holder, allowed
        self._knowledge, self._elsewhere = knowledge, elsewhere
        self._rooms = rooms_of(parts.population, parts.judge, knowledge, lambda spent: None)  # booked turn by turn
        self._lock = threading.Lock()
        for recorded in parts.population.pending():  # what an earlier process left unjudged: parents need evidence
            judge_and_tell(parts, recorded)
        self.attempt = self._begin()

    @property
    def number(self) -> int:
        return self.attempt.brief.attempt

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """What a tool answers; where it ends the attempt, what came of that and of the next one stands in the text."""
        attempt = self.attempt
        outcome = attempt.call(tool, arguments)  # not under our lock: what only reads waits for no judge
        if outcome.submission is None:
            return outcome
        with self._lock:  # an attempt commits once
            return ToolOutcome(f"{outcome.text}\n{self._committed()}", submission=outcome.submission)

    def brief(self) -> str:
        """All that an agent must know of the attempt at hand."""
        with self._lock:
            head = f"# Attempt {self.number}: {limits_text(self._allowed)}\n{self.attempt.bench.left()}"
            brief = self.attempt.brief
            return f"{head}\n\n{brief_text(brief, self._knowledge, self._elsewhere(brief.task))}"

    def give_up(self, reason: str) -> str:
        """End the attempt with nothing, and begin another one."""
        with self._lock:
            over = self.number
            self.attempt.close()
            if self.attempt.submission is not None:
                return f"Attempt {over} has just committed a version: there is nothing to give up. Read `brief` again."
            self._parts.population.fail(self.attempt.brief, OPERATOR, reason)
            self._next()
            return f"Attempt {over} is given up. {self._begun()}"

    # ---- within ---------------------------------------------------------------------------------------------------

    def _begin(self) -> ExternalAttempt:
        population = self._parts.population
        with PopulationReader(population.path) as reader:
            mine = [one.attempt for one in reader.tickets() if one.holder == self._holder]
        brief = population.ticket(mine[0])[0] if mine else population.ask(self._holder)
        folder = self._folder / f"attempt-{brief.attempt}"
        bench = open_workbench(folder, self._rooms, brief, OPERATOR, self._allowed, adopt=folder.is_dir())
        attempt = ExternalAttempt(brief, bench, population.diary, OPERATOR)
        self.attempt = attempt
        if attempt.submission is not None:  # the process ended between the gate and the candidate
            self._committed()
        return self.attempt

    def _committed(self) -> str:
        recorded = self._parts.population.record(self.attempt.brief, self.attempt.proposal())
        told = judge_and_tell(self._parts, recorded)
        self._next()
        return f"{_told_text(told)} {self._begun()}"

    def _next(self) -> None:
        shutil.rmtree(self._folder / f"attempt-{self.number}", ignore_errors=True)
        self.attempt = self._begin()

    def _begun(self) -> str:
        parent = self.attempt.brief.parent.candidate
        return (
            f"Attempt {self.number} has begun: kernel.py holds version C{parent} now, and every limit starts anew. "
            "Read `brief` again."
        )


def _told_text(told: TellResult) -> str:
    gain = f", {math.exp(told.log_gain):.3f}x as fast as its parent" if told.log_gain is not None else ""
    best = "; it is the best so far" if told.is_best else ""
    return f"It is version C{told.recorded.candidate}{gain}{best}."
