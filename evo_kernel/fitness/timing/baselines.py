"""What a kernel is held against: the functions that a task lists, and `torch.compile` of its reference.

All are timed by the clock of plans, as graphs. One that cannot run here is told by its name and never ends a search. A
task whose reference gains nothing from compiling, or takes minutes to, says `reference.compiled_baseline = False`; one
that has a form of its own for it (a benchmark's module, compiled) names that function there. A listed function may say
`function.deadline_s = 30`. cuDNN looks for its fastest convolution by trying (`searching`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from evo_kernel.tasks.task import Case, Task

COMPILED = "torch.compile"
DEADLINE_S = 60.0
COMPILE_DEADLINE_S = 180.0


def baseline_names(task: Task) -> tuple[str, ...]:
    """Names in the order in which they are timed; the compiled reference last, where the task has baselines at all."""
    if not task.baselines:
        return ()  # a plan file alone: there is no reference
    names = tuple(task.baselines)
    wanted = getattr(task.reference_function, "compiled_baseline", True) and COMPILED not in names
    return (*names, COMPILED) if wanted else names


def deadline_of(task: Task, name: str) -> float:
    """Seconds after which a baseline is given up."""
    usual = COMPILE_DEADLINE_S if name == COMPILED else DEADLINE_S
    return float(getattr(task.baselines.get(name), "deadline_s", usual))


def faults_of(case: Case, faults: Mapping[str, str]) -> dict[str, str]:
    """Of a runner's `baseline_faults`, those of one case, by the baseline's name."""
    head = f"{case.name}: "
    return {key.removeprefix(head): reason for key, reason in faults.items() if key.startswith(head)}


def baseline_function(task: Task, name: str) -> Callable[..., Any]:
    """The function to time. Raises KeyError for a name that the task does not have."""
    if name in task.baselines:
        return task.baselines[name]
    if name != COMPILED:
        raise KeyError(name)
    torch.compiler.reset()  # one shape at a time: no guard of an earlier case, and no limit on recompiling
    own = getattr(task.reference_function, "compiled_baseline", None)
    return own if callable(own) else torch.compile(task.reference_function, dynamic=False)


@contextlib.contextmanager
def searching() -> Iterator[None]:
    """cuDNN tries its algorithms on every new shape, as whoever cares for speed lets it.

    PyTorch remembers one algorithm a shape, dtype and setting of `deterministic`, whether it was searched for or not.
    So whoever computes references in the same process sets `deterministic`: what is remembered for them is not found
    here.
    """
    flags = torch.backends.cudnn
    before = flags.benchmark, flags.deterministic
    flags.benchmark, flags.deterministic = True, False
    try:
        yield
    finally:
        flags.benchmark, flags.deterministic = before
