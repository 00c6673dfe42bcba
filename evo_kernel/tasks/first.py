"""The first kernel of a search: the task's SEED, or one written from its reference."""

from __future__ import annotations

from evo_kernel.tasks.task import Task
from evo_kernel.types import Source


def first_kernel(task: Task) -> Source:
    """The task's seed if it names one, else what lowering writes.

    Raises LoweringError when the reference uses an operation that lowering does not know.
    """
    if task.seed is not None:
        return task.seed
    from evo_kernel.tasks.lowering import lower  # only here: a task with a seed need not pay for tracing

    return lower(task)
