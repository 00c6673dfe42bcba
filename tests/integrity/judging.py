"""Puts files of the corpus before the real judge: one judge a task and deadline, its files side by side.

A judge is three process trees; it is opened when the first file of its task is asked for, and closed when a file of
another task is. So tests ask task by task.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
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
    """Outcomes of files. The judge of the file asked for last stays open for others of its task."""

    def __init__(self, order: Iterable[Entry]) -> None:
        """`order`: the files in the order in which they will be asked for, those of a task in a row."""
        self._order = tuple(order)
        self._sitting: tuple[str, float] | None = None  # whose judge is open
        self._open = ExitStack()
        self._found: dict[str, Future[Outcome]] = {}

    def outcome(self, entry: Entry) -> Outcome:
        """What became of a file. The next files of its task are judged beside it, one a processor.

        No more than these: of several test processes each has a part of the files.
        """
        if self._sitting != (entry.task, entry.deadline_s):
            self.close()
            self._sit(entry)
        start = self._order.index(entry)
        for following in self._order[start : start + (os.cpu_count() or 1)]:
            if following.name not in self._found and (following.task, following.deadline_s) == self._sitting:
                self._found[following.name] = self._pool.submit(_outcome, self._judge, following)
        return self._found[entry.name].result()

    def close(self) -> None:
        """Waits for what is being judged and closes the judge."""
        self._open.close()
        self._sitting = None

    def _sit(self, entry: Entry) -> None:
        settings = JudgeSettings(tune_plans=0, deadline_s=entry.deadline_s)
        self._judge = self._open.enter_context(open_judge(load_task(entry.task), device=device(), settings=settings))
        self._pool = self._open.enter_context(ThreadPoolExecutor(os.cpu_count() or 1))
        self._sitting = (entry.task, entry.deadline_s)


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
