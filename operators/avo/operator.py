"""The agent as an operator: `propose` is one attempt, its opening, the memory of those before, a supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Credit, Evaluation, Probe, Proposal, Source, Strategy
from evo_kernel.types.promotion import REGRESS
from evo_kernel.types.protocols import TurnStore
from operators.avo.attempt import OPENING, AvoAttempt, AvoSettings, Paused, give_up
from operators.avo.memory import AgentMemory, Record, Review, Supervisor
from operators.llm.base import Message, Model
from operators.macro import catalogue
from operators.prompts.evidence import told, tried_line, version_line
from operators.prompts.parts import Part, joined, without_middle
from operators.prompts.writer import Prompts
from operators.workbench.judge_tools import KERNEL
from operators.workbench.lineage_tools import note_line
from operators.workbench.tool import WorkbenchDeps
from operators.workbench.toolset import Workbench, start_files, task_files
from operators.workbench.workspace import Workspace

BEST, NEWEST, NOTES = 8, 6, 12
SOURCE = 8000  # tokens of the kernel to start from; all of it is in the workspace
PART = """\
You work alone, with tools, until a version of yours is committed. You are the whole step: you choose what to read, what
to change, when to measure. Work in rounds: look (profile, lineage, knowledge, notes), make a plan of one idea, change
{kernel}, `probe` until it is correct, `evaluate`, learn from the numbers, go on or turn back. Change one thing at a
time. What did not work is worth a note, with its evidence.

What counts is the score: the geometric mean over the cases of baseline time ÷ kernel time. A gate outside of you
decides on `submit`: the kernel must be correct, surely faster than the best version on the whole (95 %), and on no case
more than {regress:.0%} slower than that; it is measured again, on other inputs and on shapes that you are not shown. So
write for all shapes that the task's reference takes, not for the ones you see. Anything but an honest kernel (constants
for known inputs, work left out, patched timers) is found and refused.

- The task is also in task/task.md, its reference in task/reference.py.
- Module constants in capitals (BLOCK_M = 64) that a launch takes are tuned for you at every `evaluate`: spend your
  evaluations on structure.
- An answer without a tool call does nothing. Several calls in one answer are carried out in order.
- Older turns are summed up when the conversation grows long: what you must not lose belongs into a file of your
  workspace, and what others should know into a note."""


def opening(turns: int, workbench: Workbench, rooms: WorkbenchDeps, memory: AgentMemory) -> tuple[Message, ...]:
    """The stable messages of an attempt: what is the same in all attempts first."""
    brief = workbench.brief
    part = PART.format(kernel=KERNEL, regress=REGRESS)
    fixed = Prompts().system(brief.task, brief.environment).content
    system = Message("system", f"{fixed}\n\n{joined([Part('Your part', part)])}", stable=True)
    situation = "\n\n".join(_situation(turns, workbench, rooms, memory))
    return system, Message("user", situation, stable=True)


def _situation(turns: int, workbench: Workbench, rooms: WorkbenchDeps, memory: AgentMemory) -> Iterator[str]:
    """What is another thing in each attempt."""
    brief, parent = workbench.brief, workbench.brief.parent
    yield f"# Attempt {brief.attempt}"
    best = rooms.lineage.versions(BEST, "best")
    shown = {one.number for one in best}
    newest = [one for one in rooms.lineage.versions(BEST + NEWEST, "newest") if one.number not in shown][:NEWEST]
    lines = ["## Versions", "best first", *map(version_line, best)]
    lines += ["", "of the others, newest first", *map(version_line, newest)] if newest else []
    yield "\n".join(lines)
    if earlier := memory.text():
        yield f"## Earlier attempts, newest last\n{earlier}"
    if notes := rooms.notebook.notes(NOTES):
        yield "## Notes\n" + "\n".join(note_line(one) for one in notes)
    said = told(parent.evaluation, f"C{parent.candidate}") if parent.evaluation else "not judged yet"
    yield f"## Where you start: version C{parent.candidate}\n{said}"
    if brief.tried:
        yield "## Tried on this version\n" + "\n".join(tried_line(one) for one in brief.tried[:16])
    text = without_middle(parent.source.text.rstrip(), SOURCE)
    yield f"## {KERNEL}, as it stands\n```python\n{text}\n```"
    if (review := memory.review()) is not None:
        yield directions(review, brief.attempt)
    yield f"Begin. You have {turns} answers; {workbench.left()}."


def directions(review: Review, attempt: int) -> str:
    """The supervisor's word: attempts at the same time begin with different ones."""
    count = len(review.directions)
    first = (attempt - review.attempt) % count if count else 0
    order = [review.directions[(first + n) % count] for n in range(count)]
    listed = "\n".join(f"{n}. {one}" for n, one in enumerate(order, start=1))
    return (
        f"## New directions\nA reviewer found: {review.why}. Take the first that fits, and leave what failed.\n{listed}"
    )


class AvoOperator:
    """Implements evo_kernel.types.Operator. Thread-safe: each attempt has a conversation and a folder of its own.

    What its tools evaluate is charged by `rooms.bench`; the engine's probe is not used.
    """

    name = "avo"

    def __init__(
        self,
        model: Model,
        rooms: WorkbenchDeps,
        store: TurnStore,
        folder: Path,
        settings: AvoSettings | None = None,
        *,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`folder`: where workspaces are made, one an attempt, and removed. `stopping`: whether the run is ending:
        attempts are set aside then, for a later session."""
        self.settings = settings or AvoSettings()
        self._model, self._store, self._folder = model, store, folder
        self._stopping, self._clock, self._sleep = stopping, clock, sleep
        self._rooms, self._memory = rooms, AgentMemory(store)
        self._supervisor = Supervisor(self.settings.supervision, model, rooms.lineage)

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
        strategy = ended.submission.strategy if ended.submission else ""
        self._memory.end(
            Record(
                brief.attempt, brief.parent.candidate, ended.why, ended.submission is not None, strategy, ended.gain,
                ended.tried, self._clock(),
            )
        )  # fmt: skip
        if ended.submission is None:
            raise OperatorFailed(f"no commit: {ended.why}", operator=self.name, steps=ended.steps, calls=ended.calls)
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
        attempt.open(opening(self.settings.limits.turns, workbench, self._rooms, self._memory), calls)
