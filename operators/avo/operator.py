"""The agent as an operator: `propose` is one attempt, with the memory of those before and a supervisor over them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Credit, Evaluation, Probe, Proposal, Source, Strategy
from evo_kernel.types.protocols import TurnStore
from operators.avo.attempt import OPENING, AttemptEnd, AvoAttempt, Paused, give_up
from operators.avo.memory import AgentMemory, Record
from operators.avo.prompting import opening
from operators.avo.settings import AvoSettings
from operators.avo.supervisor import Supervisor
from operators.llm.base import Model
from operators.macro import catalogue
from operators.workbench.protocols import WorkbenchDeps
from operators.workbench.toolset import Workbench, start_files, task_files
from operators.workbench.workspace import Workspace


class AvoOperator:
    """Implements evo_kernel.types.Operator. Thread-safe: each attempt has a conversation and a folder of its own.

    What its tools evaluate is charged by `rooms.bench`; the engine's probe is not used.
    """

    def __init__(
        self,
        model: Model,
        rooms: WorkbenchDeps,
        store: TurnStore,
        folder: Path,
        settings: AvoSettings | None = None,
        *,
        name: str = "avo",
        supervisor: Model | None = None,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`folder`: where workspaces are made, one an attempt, and removed. `supervisor`: the model that reviews, the
        same one if None. `stopping`: whether the run is ending: attempts are set aside then, for a later session."""
        self.name, self.settings = name, settings or AvoSettings()
        self._model, self._store, self._folder = model, store, folder
        self._stopping, self._clock, self._sleep = stopping, clock, sleep
        self._rooms, self._memory = rooms, AgentMemory(store)
        self._supervisor = Supervisor(self.settings.supervision, supervisor or model, rooms.lineage)

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        """One attempt, or the rest of one. Raises OperatorFailed where nothing was committed."""
        del probe
        folder = self._folder / f"attempt-{brief.attempt}"
        workspace = Workspace(folder, start_files(brief.parent.source), task_files(brief))
        workbench = Workbench(workspace, self._rooms, brief, self.name, self.settings.allowed, extra=(give_up(),))
        try:
            attempt = AvoAttempt(
                self._model, workbench, self._store, self.settings, self._memory, self._stopping, self._sleep
            )
            try:
                if not attempt.resume():
                    self._open(attempt, workbench)
                ended = attempt.run()
            except Paused as pause:
                # What has not begun is left to operators that need no model.
                goes_on = attempt.begun or self._stopping()
                why = f"set aside: {pause}" if goes_on else str(pause)
                raise OperatorFailed(why, operator=self.name, calls=attempt.cost, paused=goes_on) from None
        finally:
            workspace.close()
        self._memory.end(self._record(brief, ended))
        if ended.submission is None:
            raise OperatorFailed(f"no commit: {ended.why}", operator=self.name, steps=ended.steps, calls=ended.calls)
        return self._proposal(brief, ended)

    def holds(self, brief: Brief) -> bool:
        """Whether this attempt was begun here and can be gone on with."""
        first = next(iter(self._store.turns(brief.attempt)), None)
        return first is not None and first[0] == OPENING

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        """By the catalogue's sign for a strategy that it knows; of any other, whether the kernel is another one."""
        if proposal.strategy is not None and proposal.strategy.name in catalogue.CATALOGUE:
            return catalogue.witnessed(proposal.strategy, parent, child)
        if parent is None or not parent.passed or not child.passed:
            return False
        before = {one.case: one.plan for one in parent.measurements}
        return any(one.case in before and before[one.case] != one.plan for one in child.measurements)

    def learn(self, credit: Credit) -> None:
        """What pays is in the lineage, which the agent reads."""

    # ---- within ---------------------------------------------------------------------------------------------------

    def _open(self, attempt: AvoAttempt, workbench: Workbench) -> None:
        now = self._clock()
        self._memory.begin(now)
        calls = self._supervisor.look(self._memory, workbench.brief, now)
        attempt.open(opening(self.settings, workbench, self._rooms, self._memory), calls)

    def _record(self, brief: Brief, ended: AttemptEnd) -> Record:
        strategy = ended.submission.strategy if ended.submission else ""
        return Record(
            brief.attempt, brief.parent.candidate, ended.why, ended.submission is not None, strategy, ended.gain,
            ended.tried, self._clock(),
        )  # fmt: skip

    def _proposal(self, brief: Brief, ended: AttemptEnd) -> Proposal:
        found = ended.submission
        assert found is not None, "checked by propose"
        parent = brief.parent.candidate
        merged = tuple(("merged", number) for number in found.parents if number != parent)
        return Proposal(
            source=Source(found.text, found.language),
            operator=self.name,
            strategy=Strategy(found.strategy, found.family),
            parents=(("parent", parent), *merged) if merged else (),
            steps=ended.steps,
            calls=ended.calls,
        )
