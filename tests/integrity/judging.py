"""Puts files of the corpus before the real judge: one judge a task and deadline, its files side by side.

A judge is three process trees; it is opened when the first file of its task is asked for, and closed when a file of
another task is. So tests ask task by task.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from evo_kernel.fitness.judge import JudgeSettings, open_judge
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.recorder import RecordFault
from evo_kernel.types import CaseKind, Evaluation, Measurement, Purpose, Status
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
        self._lock = threading.Lock()  # of what the judge that is open said of honest files
        self._scores: dict[tuple[str, Purpose], float | None] = {}
        self._hashes: dict[Path, dict[str, str]] = {}

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
                self._found[following.name] = self._pool.submit(self._outcome, following)
        return self._found[entry.name].result()

    def close(self) -> None:
        """Waits for what is being judged and closes the judge."""
        self._open.close()
        self._sitting = None

    def _sit(self, entry: Entry) -> None:
        settings = JudgeSettings(tune_plans=0, deadline_s=entry.deadline_s)
        task = load_task(entry.task)
        self._judge = self._open.enter_context(open_judge(task, device=device(), settings=settings))
        if device() == "cpu":  # modeled times of a first kernel are no test's subject here: scores are over 100 µs
            for case in task.cases:
                self._judge.baselines.know(Measurement(case.name, "", 100.0, 0.0, 0, 100.0, 100.0, {"given": 100.0}))
        self._pool = self._open.enter_context(ThreadPoolExecutor(os.cpu_count() or 1))
        self._sitting = (entry.task, entry.deadline_s)
        self._scores.clear()
        self._hashes.clear()

    def _outcome(self, entry: Entry) -> Outcome:
        evaluation = self._judge.evaluate(entry.source, entry.purpose)
        if evaluation.status is not Status.PASSED or not (entry.twin or entry.rival):
            return Outcome(evaluation)
        if entry.rival:
            return Outcome(evaluation, rival=self._score(entry.rival, entry.purpose))
        return Outcome(evaluation, self._plans(entry.path), self._plans(_honest(entry.twin)))

    def _score(self, honest: str, purpose: Purpose) -> float | None:
        """The score of an honest file, by the judge that is open: once, whoever may not beat it."""
        entry = read(_honest(honest))
        asked = self._found.get(entry.name)  # it came first, if this process has it
        if asked is not None and (entry.task, entry.deadline_s) == self._sitting and entry.purpose == purpose:
            return asked.result().evaluation.score
        with self._lock:
            if (honest, purpose) not in self._scores:
                self._scores[honest, purpose] = self._judge.evaluate(entry.source, purpose).score
            return self._scores[honest, purpose]

    def _plans(self, path: Path) -> dict[str, str]:
        """Hashes of a file's plans, by case."""
        with self._lock:
            if path not in self._hashes:
                plans = self._judge.plans(read(path).source, (), KINDS)
                self._hashes[path] = {case: _hash(plan) for case, plan in plans.items()}
            return self._hashes[path]


def _honest(name: str) -> Path:
    return HERE / "honest" / f"{name}.py"


def _hash(plan: CompiledPlan | RecordFault) -> str:
    return plan.hash if isinstance(plan, CompiledPlan) else f"{plan.status}: {plan.reason}"
