"""Finds timed cases whose error bounds bind no kernel: an honest kernel's error there is as large as the result.

A reference may be well-conditioned on small check cases, and chaotic after as many steps as a timed case has, or
overflow there at every element. Then a kernel that does nothing there would pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evo_kernel.errors import TaskError
from evo_kernel.fitness.correctness.check import bounds_of
from evo_kernel.fitness.correctness.error_bounds import Expected, expect
from evo_kernel.tasks.task import Case, Task, Tolerance
from evo_kernel.types import CaseKind


def unbound(task: Task, case: Case, expected: Sequence[Expected]) -> str:
    """Why nothing can be told about an output on a timed case with nominal inputs; empty if something can.

    An output that does not bind on check cases either is left alone: its task is degenerate, which its probe tells.
    """
    if case.kind is CaseKind.CHECK:
        return ""
    loose = [number for number, part in enumerate(expected) if not _binds(part, task.tolerance)]
    if not loose:
        return ""
    try:
        checked = expect(task, task.inputs(_smallest(task), torch.Generator("cpu").manual_seed(0), "cpu"))
    except TaskError:
        return ""
    for number in loose:
        if number < len(checked) and bool(checked[number].truth.any()) and _binds(checked[number], task.tolerance):
            which = f"output {number}" if len(expected) > 1 else "the output"
            return (
                f"nothing can be told about {which} on this case: the error of an honest kernel is as large as the "
                "result, so zeros would pass. Give the case another size, or other inputs"
            )
    return ""


def _smallest(task: Task) -> Case:
    return min(task.cases_of(CaseKind.CHECK), key=task.elements)


def _binds(part: Expected, tolerance: Tolerance) -> bool:
    """Whether zeros would be wrong, or are right."""
    if not bool(part.truth.any()) or not part.truth.is_floating_point() or not part.honest.numel():
        return True
    size = torch.where(part.compared & part.truth.isfinite(), part.truth, 0.0)
    frobenius, largest = bounds_of(part, tolerance)
    return bool(size.norm() > frobenius) or bool(size.abs().max() > largest)
