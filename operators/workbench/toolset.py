"""All tools of one attempt behind one call. What an agent does wrong comes back as text, never as an exception."""

from __future__ import annotations

import contextlib
import difflib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from evo_kernel.errors import InfraError
from evo_kernel.types import Brief, Source
from operators.workbench.judge_tools import KERNEL, Allowed, Judging
from operators.workbench.lineage_tools import Notes, knowledge_tools, lineage_tools
from operators.workbench.tool import Submission, ToolFailed, WorkbenchDeps, WorkTool, bounded, checked
from operators.workbench.workspace import Workspace, file_tools


@dataclass(frozen=True)
class ToolOutcome:
    """What came of one call. All but `text` and `wall_s` is what a resumed attempt needs to stand where it stood."""

    text: str
    failed: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)  # calls made by then, by tool
    changes: Mapping[str, str] = field(default_factory=dict)  # files written
    facts: Mapping[str, Any] = field(default_factory=dict)
    charged: Mapping[str, int] = field(default_factory=dict)  # evaluations by purpose
    gpu_s: float = 0.0
    submission: Submission | None = None
    wall_s: float = 0.0

    def as_data(self) -> dict[str, Any]:
        """Plain JSON; what is at its default is left out."""
        data = vars(self) | {"submission": asdict(self.submission) if self.submission is not None else None}
        return {name: value for name, value in data.items() if value or name == "text"}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> ToolOutcome:
        given = dict(data)
        submission = given.pop("submission", None)
        if submission is not None:
            submission = Submission(**{**submission, "parents": tuple(submission["parents"])})
        return ToolOutcome(**given, submission=submission)


class Workbench:
    """The tools of one attempt. Thread-safe: calls are carried out one after the other, and those that wait for the
    judge hold up only each other: files, lineage and knowledge can be read meanwhile."""

    def __init__(
        self,
        workspace: Workspace,
        rooms: WorkbenchDeps,
        brief: Brief,
        author: str,
        allowed: Allowed | None = None,
        extra: Sequence[WorkTool] = (),
    ) -> None:
        """`author`: the operator at work, named by its notes. `extra`: tools of whoever drives the agent."""
        self.workspace, self.brief = workspace, brief
        self._judges = threading.Lock()  # held by a call that waits for the judge, from its start to its end
        self._lock = threading.Lock()  # of all that changes; taken after `_judges`, let go of while the judge works
        self._judging = Judging(workspace, rooms.bench, rooms.lineage, brief, allowed or Allowed(), self._aside)
        tools = [*file_tools(workspace), *self._judging.tools(), *extra, *lineage_tools(workspace, rooms.lineage)]
        if rooms.knowledge is not None:
            tools += knowledge_tools(rooms.knowledge)
        tools += Notes(rooms.notebook, self._judging.used, rooms.lineage, brief.attempt, author).tools()
        self.tools: Mapping[str, WorkTool] = {tool.name: tool for tool in tools}
        self.submission: Submission | None = None  # what passed the gate: the attempt is over
        self._over = ""

    def call(
        self, name: str, arguments: str | Mapping[str, Any], keep: Callable[[ToolOutcome], None] = lambda outcome: None
    ) -> ToolOutcome:
        """Carry a call out. Raises only what is a bug of ours. `keep` hears of outcomes in the order of their changes:
        restored in that order, they lead to the same files."""
        began = time.monotonic()
        with contextlib.ExitStack() as held:
            tool, given, wrong = None, {}, None
            try:
                if (tool := self.tools.get(name)) is None:
                    near = difflib.get_close_matches(name, self.tools, 1)
                    hint = f"; did you mean {near[0]}?" if near else "."
                    raise ToolFailed(f"there is no tool {name[:60]!r}{hint} There are: {', '.join(self.tools)}")
                given = checked(name, tool.parameters, arguments)
            except ToolFailed as failure:
                tool, wrong = None, failure
            if tool is not None and tool.slow:
                held.enter_context(self._judges)
            held.enter_context(self._lock)
            outcome = self._failed(wrong, began) if tool is None else self._carried_out(tool, given, began)
            keep(outcome)
            return outcome

    def close(self, why: str) -> None:
        """Let what is under way come to its end; whatever is asked for later is answered with `why`."""
        with self._judges, self._lock:
            self._over = why

    def restore(self, outcome: ToolOutcome) -> None:
        """Stand where an earlier session stood after this outcome; called in the order of the calls."""
        with self._lock:
            self.workspace.restore(outcome.changes)
            self._judging.used.counts.update(outcome.counts)
            self._judging.used.remember(outcome.facts)
            self.submission = outcome.submission or self.submission

    def left(self) -> str:
        """What of the attempt's budget is left, in a line."""
        with self._lock:
            return self._judging.left()

    def _carried_out(self, tool: WorkTool, given: Mapping[str, Any], began: float) -> ToolOutcome:
        try:
            if self.submission is not None:
                raise ToolFailed("a version is committed: the attempt is over, nothing more can be done in it")
            if self._over:
                raise ToolFailed(self._over)
            told = tool.run(given)
        except ToolFailed as failure:
            return self._failed(failure, began)
        except InfraError as error:
            text = f"Failed: the machine failed, not your kernel ({error}). Try again, or do something else first."
            return self._outcome(bounded(text), began, failed=True)
        self._judging.used.remember(told.facts)
        self.submission = told.submission
        return self._outcome(
            bounded(told.text), began, facts=told.facts, charged=told.charged, gpu_s=told.gpu_s,
            submission=told.submission,
        )  # fmt: skip

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """While the judge works for a call, others may change files and counts."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def _failed(self, failure: ToolFailed | None, began: float) -> ToolOutcome:
        return self._outcome(bounded(f"Failed: {failure}"), began, failed=True)

    def _outcome(self, text: str, began: float, **rest: Any) -> ToolOutcome:
        changes = self.workspace.take_changes()
        counts = dict(self._judging.used.counts)
        return ToolOutcome(text, counts=counts, changes=changes, wall_s=time.monotonic() - began, **rest)


def task_files(brief: Brief) -> dict[str, str]:
    """What an agent may read of its task: never the confirm cases."""
    task = brief.task
    cases = "\n".join(
        f"- {case.name} ({case.kind}): {', '.join(f'{name}={value}' for name, value in case.sizes.items())}"
        + "".join(f"\n  input {dtype} {list(shape)} strides {list(strides)}" for dtype, shape, strides in case.inputs)
        for case in task.cases
        if case.kind != "confirm"
    )
    allow = (
        "only kernels of your own do arithmetic; torch may allocate, view and fill"
        if task.allow == "kernels"
        else "torch operations may be mixed with kernels of your own"
    )
    text = (
        f"# {task.name}\n{task.description}\n\n"
        f"- allowed: {allow}\n- fp32 contractions: {task.precision}\n"
        f"- two runs {'may differ in the last bits' if task.atomics else 'must be equal, bit by bit'}\n\n"
        f"## Cases\n{cases}\n"
    )
    return {"task/task.md": text, "task/reference.py": task.reference}


def start_files(source: Source) -> dict[str, str]:
    """What a workspace begins with: the brief's parent, to be changed."""
    return {KERNEL: source.text}
