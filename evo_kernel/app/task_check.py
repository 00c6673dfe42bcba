"""Whether a task is sound: probed, what it states held against its reference, and its first kernel judged."""

from __future__ import annotations

from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.tasks.first import Wanted, first_kernel
from evo_kernel.tasks.probe import ProbeFinding, examine, probe
from evo_kernel.tasks.task import Task
from evo_kernel.types import Evaluation, Purpose


def checked(task: Task, device: str, wanted: Wanted) -> tuple[list[ProbeFinding], Evaluation]:
    """Findings, and the verdict on the first kernel (`wanted`: which). Raises TaskError, LoweringError, UserError."""
    findings = [*probe(task)]
    if not any(finding.fatal for finding in findings):
        findings += examine(task)
    with open_judge(task, device=device, settings=JudgeSettings(tune_plans=0)) as judge:
        return findings, judge.evaluate(first_kernel(task, wanted), Purpose.SCORE)
