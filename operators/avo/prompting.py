"""What an attempt opens with: who the agent is and how it works, its task, what is known, where to begin."""

from __future__ import annotations

from collections.abc import Iterator

from operators.avo.memory import AgentMemory, Review
from operators.avo.settings import AvoSettings
from operators.llm.base import Message
from operators.prompts.evidence import tried_line
from operators.prompts.parts import Part, joined, without_middle
from operators.prompts.writer import Prompts
from operators.workbench.formatting import told, version_line
from operators.workbench.judge_tools import KERNEL
from operators.workbench.note_tools import note_line
from operators.workbench.protocols import WorkbenchDeps, WorkbenchLineage
from operators.workbench.toolset import Workbench

BEST, NEWEST, NOTES = 8, 6, 12
SOURCE = 8000  # tokens of the kernel to start from; all of it is in the workspace
NUDGE = (
    "You called no tool. Go on with the tools: look, change {kernel}, probe, evaluate, submit. When you have nothing "
    "left to try, call give_up and say why."
)
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


def opening(
    settings: AvoSettings,
    workbench: Workbench,
    rooms: WorkbenchDeps,
    memory: AgentMemory,
) -> tuple[Message, ...]:
    """The stable messages of an attempt: what is the same in all attempts first."""
    brief = workbench.brief
    part = PART.format(kernel=KERNEL, regress=rooms.bench.regress)
    fixed = Prompts().system(brief.task, brief.environment).content
    system = Message("system", f"{fixed}\n\n{joined([Part('Your part', part)])}", stable=True)
    return (
        system,
        Message("user", "\n\n".join(_situation(workbench, rooms, memory, settings)), stable=True),
    )


def _situation(
    workbench: Workbench,
    rooms: WorkbenchDeps,
    memory: AgentMemory,
    settings: AvoSettings,
) -> Iterator[str]:
    """What is another thing in each attempt."""
    brief, parent = workbench.brief, workbench.brief.parent
    yield f"# Attempt {brief.attempt}"
    if rooms.lineage is not None:
        yield f"## Versions\n{_versions(rooms.lineage)}"
    if earlier := memory.text():
        yield f"## Earlier attempts, newest last\n{earlier}"
    if rooms.notebook is not None and (notes := rooms.notebook.notes(NOTES)):
        yield "## Notes\n" + "\n".join(note_line(one) for one in notes)
    said = told(parent.evaluation, f"C{parent.candidate}") if parent.evaluation else "not judged yet"
    yield f"## Where you start: version C{parent.candidate}\n{said}"
    if brief.tried:
        yield "## Tried on this version\n" + "\n".join(tried_line(one) for one in brief.tried[:16])
    text = without_middle(parent.source.text.rstrip(), SOURCE)
    yield f"## {KERNEL}, as it stands\n```python\n{text}\n```"
    if (review := memory.review()) is not None:
        yield directions(review, brief.attempt)
    yield f"Begin. You have {settings.limits.turns} answers; {workbench.left()}."


def _versions(lineage: WorkbenchLineage) -> str:
    """The best, then the newest of the others."""
    best = lineage.versions(BEST, "best")
    shown = {one.number for one in best}
    newest = [one for one in lineage.versions(BEST + NEWEST, "newest") if one.number not in shown][:NEWEST]
    lines = ["best first", *(version_line(one) for one in best)]
    lines += ["", "of the others, newest first", *(version_line(one) for one in newest)] if newest else []
    return "\n".join(lines)


def directions(review: Review, attempt: int) -> str:
    """The supervisor's word: attempts at the same time begin with different ones."""
    count = len(review.directions)
    first = (attempt - review.attempt) % count if count else 0
    order = [review.directions[(first + n) % count] for n in range(count)]
    listed = "\n".join(f"{n}. {one}" for n, one in enumerate(order, start=1))
    return (
        f"## New directions\nA reviewer found: {review.why}. Take the first that fits, and leave what failed.\n{listed}"
    )
