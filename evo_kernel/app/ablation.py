"""The champion without each of its edits, judged again: what every edit is still worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from evo_kernel.app.run_report import Ablated, ReportedEdit
from evo_kernel.errors import UserError
from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.knobs import apply_knobs
from evo_kernel.observe.merging import without_edit
from evo_kernel.tasks.loading import load
from evo_kernel.types import Evaluation, Knobs, Purpose, Source
from populations.reading import PopulationReader

ENTANGLED = "later edits build on it"
NOTHING = "nothing of it is left"


def ablated(
    reader: PopulationReader, edits: Sequence[ReportedEdit], device: str
) -> tuple[list[ReportedEdit], float | None]:
    """The edits with `without`, and the champion's score beside them. Raises UserError where that cannot be."""
    if len(edits) < 2:
        raise UserError("there is nothing to take out: the first kernel is the fastest")
    task = str(reader.sessions()[-1].config.get("task") or "")
    own = reader.relative(edits[-1].candidate)
    if not task:
        raise UserError(f"{reader.path} does not say what its task is: ablate in a file that `run` made")
    loaded = load(task)
    if own.evaluation is not None and loaded.identity != own.evaluation.task:
        raise UserError(
            f"the task file of {reader.path} has changed, so new times cannot be compared with old ones: restore the "
            "file, or start a new run"
        )
    with open_judge(loaded, device=device, settings=JudgeSettings()) as judge:
        return taken_apart(edits, lambda source: judge.evaluate(source, Purpose.SCORE), own.knobs)


def taken_apart(
    edits: Sequence[ReportedEdit], judge: Callable[[Source], Evaluation], knobs: Knobs
) -> tuple[list[ReportedEdit], float | None]:
    """Judge the last text, and that text without each edit. All start from the knobs that it was scored with."""
    texts = [edit.text for edit in edits]

    def judged(text: str) -> Ablated:
        try:
            source = apply_knobs(Source(text), knobs)
        except SyntaxError:
            return Ablated("what is left is not valid Python")
        found = judge(source)
        reason = f": {found.reason}" if found.reason else ""
        return Ablated(f"{found.status}{reason}"[:200], found.score)

    def without(number: int) -> Ablated:
        left = without_edit(texts, number)
        if left is None:
            return Ablated(ENTANGLED)
        return Ablated(NOTHING) if left == texts[-1] else judged(left)

    whole = judged(texts[-1])
    return [edits[0], *(replace(edits[n], without=without(n)) for n in range(1, len(edits)))], whole.score
