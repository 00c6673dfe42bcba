"""The champion without each of its edits, judged again: what every edit is still worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from evo_kernel.errors import UserError
from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.knobs import apply_knobs
from evo_kernel.observe.merging import without_edit
from evo_kernel.observe.report import Ablated, Report
from evo_kernel.tasks.loading import load
from evo_kernel.types import Evaluation, Purpose, Source
from populations.reading import PopulationReader

ENTANGLED = "later edits build on it"
NOTHING = "nothing of it is left"


def ablated(report: Report, population: Path, task: str, device: str) -> Report:
    """The report with every edit's `without`. Raises UserError where nothing can be measured again."""
    if len(report.edits) < 2:
        raise UserError("there is nothing to take out: the first kernel is the fastest")
    if not task:
        raise UserError(f"{population} does not say what its task is: ablate in a file that `run` made")
    with PopulationReader(population) as reader:
        views = [reader.candidate(edit.candidate) for edit in report.edits]
        own = reader.relative(report.edits[-1].candidate)
    texts = [view.proposal.source.text for view in views]
    loaded = load(task)
    if report.evaluation is not None and loaded.identity != report.evaluation.task:
        raise UserError(f"the task file of {population} has changed: what it measures now cannot be held against then")
    with open_judge(loaded, device=device, settings=JudgeSettings()) as judge:
        return taken_apart(report, texts, lambda source: judge.evaluate(source, Purpose.SCORE), own.knobs)


def taken_apart(
    report: Report, texts: list[str], judge: Callable[[Source], Evaluation], knobs: tuple[tuple[str, int], ...]
) -> Report:
    """Judge the last text, and that text without each edit. All start from the knobs that it was scored with."""

    def judged(text: str) -> Ablated:
        try:
            source = apply_knobs(Source(text), knobs)
        except SyntaxError:
            return Ablated("what is left is not valid Python")
        found = judge(source)
        reason = f": {found.reason}" if found.reason else ""
        return Ablated(f"{found.status}{reason}"[:200], found.score)

    whole = judged(texts[-1])
    edits = [report.edits[0]]
    for number, edit in enumerate(report.edits[1:], 1):
        left = without_edit(texts, number)
        if left is None:
            edits.append(replace(edit, without=Ablated(ENTANGLED)))
        elif left == texts[-1]:
            edits.append(replace(edit, without=Ablated(NOTHING)))
        else:
            edits.append(replace(edit, without=judged(left)))
    return replace(report, edits=edits, again=whole.score)
