"""Baselines of a task: the functions that it lists, and `torch.compile` of its reference.

All are timed by the same clock as plans, as CUDA graphs. One that fails is reported by name and does not end the
search. If compiling a reference gains nothing or takes minutes, set `reference.compiled_baseline = False`; a task with
its own compiled form (a benchmark's module) names that function there. A listed function may set `function.deadline_s =
30`. cuDNN selects convolution algorithms by benchmarking (`searching` in fitness/plan/torch_operations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from evo_kernel.tasks.task import Case, Task

COMPILED = "torch.compile"
DEADLINE_S = 60.0
COMPILE_DEADLINE_S = 180.0


def baseline_names(task: Task) -> tuple[str, ...]:
    """Names in the order of timing; the compiled reference is last."""
    if not task.baselines:
        return ()  # a plan file has no reference
    names = tuple(task.baselines)
    wanted = getattr(task.reference_function, "compiled_baseline", True) and COMPILED not in names
    return (*names, COMPILED) if wanted else names


def deadline_of(task: Task, name: str) -> float:
    """Seconds after which timing a baseline is abandoned."""
    usual = COMPILE_DEADLINE_S if name == COMPILED else DEADLINE_S
    return float(getattr(task.baselines.get(name), "deadline_s", usual))


def faults_of(case: Case, faults: Mapping[str, str]) -> dict[str, str]:
    """One case's faults of a runner's `baseline_faults`, by baseline."""
    head = f"{case.name}: "
    return {key.removeprefix(head): reason for key, reason in faults.items() if key.startswith(head)}


def baseline_function(task: Task, name: str) -> Callable[..., Any]:
    """The function to time. Raises KeyError for an unknown name."""
    if name in task.baselines:
        return task.baselines[name]
    if name != COMPILED:
        raise KeyError(name)
    torch.compiler.reset()  # one shape at a time: no guards of earlier cases, no recompilation limit
    own = getattr(task.reference_function, "compiled_baseline", None)
    return own if callable(own) else torch.compile(task.reference_function, dynamic=False)
