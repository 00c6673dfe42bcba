"""Converts a task's cases to the recorder's input specifications."""

from __future__ import annotations

from collections.abc import Mapping

from evo_kernel.fitness.record.recorder import RecordCase
from evo_kernel.tasks.task import Case, Task, TensorSpec


def record_case(task: Task, case: Case) -> RecordCase:
    specs: list[Mapping[str, object]] = []
    known = task.host_values(case) if task.host_known else {}
    for position, spec in enumerate(task.input_specs(case)):
        if not isinstance(spec, TensorSpec):
            specs.append({"value": spec})
            continue
        host = {"host": known[position].tolist()} if position in known else {}
        specs.append({"dtype": spec.dtype, "shape": list(spec.shape), "strides": list(spec.strides), **host})
    return RecordCase(case.name, tuple(specs))
