"""What a task's reference can take besides numbers: fake tensors, and being differentiated."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from evo_kernel.errors import TaskError
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind

DIFFERENTIABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def takes_fakes(task: Task) -> bool:
    """Whether the reference runs on tensors without values, as compilers ask of an operator."""
    inputs = _drawn(task)
    try:
        with FakeTensorMode() as mode:
            task.outputs(*(mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in inputs))
    except TaskError:
        return False
    return True


def differentiable(task: Task) -> list[int]:
    """Positions of the floating-point inputs if the reference can be differentiated; none if it cannot."""
    inputs = _drawn(task)
    places = [p for p, v in enumerate(inputs) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    if any(inputs[place].dtype not in DIFFERENTIABLE for place in places):
        return []

    def outputs(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        full = list(inputs)
        for place, leaf in zip(places, leaves, strict=True):
            full[place] = leaf
        return tuple(one for one in task.outputs(*full) if one.is_floating_point())

    try:
        made, pull = torch.func.vjp(outputs, *(inputs[place] for place in places))[:2]
        pull(tuple(torch.ones_like(one) for one in made))
    except (TaskError, RuntimeError):  # PyTorch has no derivative of something that the file does
        return []
    return places


def _drawn(task: Task) -> tuple[Any, ...]:
    return task.inputs(_smallest(task), torch.Generator().manual_seed(0), "cpu")


def _smallest(task: Task) -> Case:
    return (task.cases_of(CaseKind.CHECK) or task.cases)[0]
