"""Training problems: tasks, and tasks narrowed to one search case."""

from __future__ import annotations

import re
from pathlib import Path

from evo_kernel.errors import UserError
from evo_kernel.tasks.loading import importer_of, load
from evo_kernel.tasks.task import Task
from evo_kernel.types import CaseKind


def problem_task(problem: str) -> Task:
    """The task of a problem: `softmax`, or `softmax@CASE` with that search case alone. Raises UserError."""
    spec, _, case = problem.partition("@")
    task = load(spec)
    if not case:
        return task
    if all(one.name != case for one in task.cases_of(CaseKind.SEARCH)):
        raise UserError(f"{spec} has no search case {case!r}: see `evo-kernel tasks show {spec}`")
    return task.narrowed(case)


def problem_of_a_tree(problem: str) -> Task:
    """The same of what is no benchmark's: what is trained on a tree must not have seen what it is compared on."""
    task = problem_task(problem)
    spec = problem.partition("@")[0]
    if importer_of(task.spec) is not None:
        raise UserError(f"{spec} is a benchmark's problem: a tree to train on must hold none. Leave it out of --tasks.")
    return task


def problem_names(spec: str, narrowed: bool) -> list[str]:
    """The problems that a task makes: itself, and where it has several search cases each of them alone."""
    searched = problem_of_a_tree(spec).cases_of(CaseKind.SEARCH)
    return [spec, *(f"{spec}@{case.name}" for case in searched if narrowed and len(searched) > 1)]


def population_of(folder: Path, problem: str) -> Path:
    """Where a problem's kernels are."""
    return folder / (re.sub(r"[^\w@.-]", "_", problem) + ".db")
