"""What an attempt opens with: who the agent is and how it works, its task, what is known, where to begin."""

from __future__ import annotations

from operators.avo.memory import Memory, Review
from operators.avo.settings import AvoSettings
from operators.llm.base import Message
from operators.prompts.evidence import tried_line
from operators.workbench.bench import Workbench, task_files
from operators.workbench.judging import KERNEL
from operators.workbench.notebook import note_line
from operators.workbench.protocols import Rooms
from operators.workbench.told import told, version_line

BEST, NEWEST, NOTES = 8, 6, 12
NUDGE = (
    "You called no tool. Go on with the tools: look, change {kernel}, probe, evaluate, submit. When you have nothing "
    "left to try, call give_up and say why."
)
SYSTEM = """\
You are an engineer who makes GPU kernels faster. You work alone, with tools, until a version of yours is committed.

You are the whole step: you choose what to read, what to change, when to measure. Work in rounds: look (profile,
lineage, knowledge, notes), make a plan of one idea, change {kernel}, `probe` until it is correct, `evaluate`, learn
from the numbers, go on or turn back. Change one thing at a time. What did not work is worth a note, with its evidence.

What counts is the score: the geometric mean over the cases of baseline time ÷ kernel time. A gate outside of you
decides on `submit`: the kernel must be correct, surely faster than the best version, and slower than allowed on no
case; it is measured again, on other inputs and on shapes that you are not shown. So write for all shapes that the
task's reference takes, not for the ones you see.

- A module has `run(*inputs)` and its kernels. Tensor values are not read on the host. What a task allows is in
  task/task.md; its reference is in task/reference.py. Anything but an honest kernel (constants for known inputs, work
  left out, caches between calls, patched timers) is found and refused.
- Module constants in capitals (BLOCK_M = 64) that a launch takes are tuned for you at every `evaluate`: spend your
  evaluations on structure.
- An answer without a tool call does nothing. Several calls in one answer are carried out in order.
- Older turns are summed up when the conversation grows long: what you must not lose belongs into a file of your
  workspace, and what others should know into a note."""


def opening(
    settings: AvoSettings,
    workbench: Workbench,
    rooms: Rooms,
    memory: Memory | None,
    review: Review | None,
    elsewhere: str = "",
) -> tuple[Message, ...]:
    """The stable messages of an attempt: what is the same in all attempts first. `elsewhere`: of other populations."""
    brief = workbench.brief
    fixed = task_files(brief)
    task = f"{fixed['task/task.md']}\n## Reference\n```python\n{brief.task.reference}\n```"
    parts = [f"# Attempt {brief.attempt}", *([elsewhere] if elsewhere else ())]
    parent = brief.parent
    said = told(parent.evaluation, f"C{parent.candidate}") if parent.evaluation else "not judged yet"
    parts.append(f"## Where you start: version C{parent.candidate}, in {KERNEL}\n{said}")
    if rooms.lineage is not None:
        best = [version_line(one) for one in rooms.lineage.versions(BEST, "best")]
        newest = [version_line(one) for one in rooms.lineage.versions(NEWEST, "newest")]
        parts.append("## Versions, best first\n" + "\n".join(best) + "\n\nnewest first\n" + "\n".join(newest))
    if brief.tried:
        parts.append("## Tried on this version\n" + "\n".join(tried_line(one) for one in brief.tried[:16]))
    if memory is not None:
        if earlier := memory.text():
            parts.append(f"## Earlier attempts, newest last\n{earlier}")
        notes = rooms.notebook.notes(NOTES) if rooms.notebook is not None else ()
        if notes:
            parts.append("## Notes\n" + "\n".join(note_line(one) for one in notes))
    if review is not None:
        parts.append(directions(review, brief.attempt))
    parts.append(f"Begin. You have {settings.limits.turns} answers; {workbench.left()}.")
    return (
        Message("system", SYSTEM.format(kernel=KERNEL), stable=True),
        Message("user", task, stable=True),
        Message("user", "\n\n".join(parts), stable=True),
    )


def directions(review: Review, attempt: int) -> str:
    """The supervisor's word: attempts at the same time begin with different ones."""
    count = len(review.directions)
    first = (attempt - review.attempt) % count if count else 0
    order = [review.directions[(first + n) % count] for n in range(count)]
    listed = "\n".join(f"{n}. {one}" for n, one in enumerate(order, start=1))
    return (
        f"## New directions\nA reviewer found: {review.why}. Take the first that fits, and leave what failed.\n{listed}"
    )
