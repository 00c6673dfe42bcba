"""Puts files of the corpus before the real judge: one judge a task and deadline, its files side by side.

A judge is three process trees; it is opened when the first file of its task is asked for, judges every file of that
task that this run has selected, and is closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.recorder import RecordFault
from evo_kernel.types import CaseKind, Evaluation, Status
from tests.integrity.corpus import HERE, Entry, load_task, read

KINDS = (CaseKind.CHECK, CaseKind.SEARCH, CaseKind.CONFIRM)


def device() -> str:
    """cuda where there is a GPU, else cpu."""
    return "cuda" if torch.version.cuda is not None and torch.cuda.device_count() > 0 else "cpu"


@dataclass(frozen=True)
class Outcome:
    """What the judge said about a file, and, where it passed, what it would have been scored for."""

    evaluation: Evaluation
    hashes: Mapping[str, str] = field(default_factory=dict)  # of its plans, by case
    twins: Mapping[str, str] = field(default_factory=dict)  # of its twin's plans, by case
    rival: float | None = None  # score of the file that it may not beat


class Court:
    """Outcomes of the selected files, found task by task."""

    def __init__(self, selected: Iterable[Entry]) -> None:
        self._waiting: dict[tuple[str, float], list[Entry]] = {}
        for entry in selected:
            self._waiting.setdefault((entry.task, entry.deadline_s), []).append(entry)
        self._found: dict[str, Future[Outcome]] = {}

    def outcome(self, entry: Entry) -> Outcome:
        """What became of a file. Judges all waiting files of its task on the first call."""
        if entry.name not in self._found:
            self._judge(entry.task, self._waiting.pop((entry.task, entry.deadline_s)), entry.deadline_s)
        return self._found[entry.name].result()

    def _judge(self, task: str, files: list[Entry], deadline_s: float) -> None:
        settings = JudgeSettings(tune_plans=0, deadline_s=deadline_s)
        with (
            open_judge(load_task(task), device=device(), settings=settings) as judge,
            ThreadPoolExecutor(os.cpu_count() or 1) as pool,
        ):
            self._found |= {entry.name: pool.submit(_outcome, judge, entry) for entry in files}


def _outcome(judge: PlanJudge, entry: Entry) -> Outcome:
    evaluation = judge.evaluate(entry.source, entry.purpose)
    if evaluation.status is not Status.PASSED or not (entry.twin or entry.rival):
        return Outcome(evaluation)
    other = read(HERE / "honest" / f"{entry.twin or entry.rival}.py")
    if entry.rival:
        return Outcome(evaluation, rival=judge.evaluate(other.source, entry.purpose).score)
    return Outcome(evaluation, _hashes(judge, entry), _hashes(judge, other))


def _hashes(judge: PlanJudge, entry: Entry) -> dict[str, str]:
    plans = judge.plans(entry.source, (), KINDS)
    return {case: _hash(plan) for case, plan in plans.items()}


def _hash(plan: CompiledPlan | RecordFault) -> str:
    return plan.hash if isinstance(plan, CompiledPlan) else f"{plan.status}: {plan.reason}"
