"""Values of integer inputs, which programs need while traffic is counted, because they determine addresses.

Targets, embedding rows, block tables and offsets are drawn by the task's `inputs` with a secret seed: a kernel that
knew them could read less while it is counted. Floating-point inputs do not determine addresses, and a search case may
have billions of them: while `inputs` runs they are shapes without memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evo_kernel.errors import TaskError
from evo_kernel.tasks.blank import Blank, is_integer
from evo_kernel.tasks.task import Case, Input, Task, TensorSpec

MOST_BYTES = 64 << 20
"""Larger integer inputs read as zeros."""
REAL_ELEMENTS = 1 << 26
"""Largest case, in elements, that is drawn completely if its `inputs` needs floating-point values."""


def index_inputs(task: Task, case: Case, seed: int) -> Mapping[int, torch.Tensor]:
    """Integer inputs of a case by position, as far as they are cheap to draw."""
    specs = {n: spec for n, spec in enumerate(task.input_specs(case)) if isinstance(spec, TensorSpec)}
    if not any(is_integer(getattr(torch, spec.dtype)) for spec in specs.values()):
        return {}
    if task.host_known:
        task.host_values(case)  # drawn with real values, as for the recorder
    try:
        with Blank(integers=True):
            values = task.inputs(case, torch.Generator("cpu").manual_seed(seed), "cpu")
    except TaskError:  # `inputs` reads floating-point values, or calls functions that need memory
        if sum(spec.elements for spec in specs.values()) > REAL_ELEMENTS:
            return {}
        values = task.inputs(case, torch.Generator("cpu").manual_seed(seed), "cpu")
    return {n: value for n, value in enumerate(values) if isinstance(value, torch.Tensor) and _is_had(value)}


def _is_had(value: Input) -> bool:
    assert isinstance(value, torch.Tensor)
    return is_integer(value.dtype) and value.device.type == "cpu" and value.nbytes <= MOST_BYTES
