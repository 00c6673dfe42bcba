"""What programs must read, while traffic is counted, to go where real ones go: the values of integer inputs.

Targets, embedding rows, block tables and offsets decide addresses. They are drawn as the task draws them, by a
seed that the runner keeps secret: a kernel that knew them could read less while it is counted. Floating-point inputs
decide nothing, and a search case may have billions of them: while the file's `inputs` runs they are shapes without
memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evo_kernel.errors import TaskError
from evo_kernel.tasks.blank import Blank, is_integer
from evo_kernel.tasks.task import Case, Input, Task, TensorSpec

MOST_BYTES = 64 << 20
"""An integer input that is larger reads as zeros."""
REAL_ELEMENTS = 1 << 26
"""A case whose `inputs` needs real floating-point values is drawn whole up to this many elements."""


def index_inputs(task: Task, case: Case, seed: int) -> Mapping[int, torch.Tensor]:
    """Integer inputs of a case by position, as far as they can be had at a modest cost."""
    specs = {n: spec for n, spec in enumerate(task.input_specs(case)) if isinstance(spec, TensorSpec)}
    if not any(is_integer(getattr(torch, spec.dtype)) for spec in specs.values()):
        return {}
    if task.host_known:
        task.host_values(case)  # drawn here with everything real, as for the recorder
    try:
        with Blank(integers=True):
            values = task.inputs(case, torch.Generator("cpu").manual_seed(seed), "cpu")
    except TaskError:  # reads values of floating-point tensors, or calls what knows no tensors without memory
        if sum(spec.elements for spec in specs.values()) > REAL_ELEMENTS:
            return {}
        values = task.inputs(case, torch.Generator("cpu").manual_seed(seed), "cpu")
    return {n: value for n, value in enumerate(values) if isinstance(value, torch.Tensor) and _is_had(value)}


def _is_had(value: Input) -> bool:
    assert isinstance(value, torch.Tensor)
    return is_integer(value.dtype) and value.device.type == "cpu" and value.nbytes <= MOST_BYTES
