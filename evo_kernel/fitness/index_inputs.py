"""What programs must read, while traffic is counted, to go where real ones go: the values of integer inputs.

Targets, embedding rows, block tables and offsets decide addresses. They are drawn as the task draws them, by a
seed that the runner keeps secret: a kernel that knew them could read less while it is counted. Floating-point inputs
decide nothing, and a search case may have billions of them: while the file's `inputs` runs they are shapes without
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from evo_kernel.errors import TaskError
from evo_kernel.tasks.task import Case, Input, Task, TensorSpec

MOST_BYTES = 64 << 20
"""An integer input that is larger reads as zeros."""
REAL_ELEMENTS = 1 << 26
"""A case whose `inputs` needs real floating-point values is drawn whole up to this many elements."""


def index_inputs(task: Task, case: Case, seed: int) -> Mapping[int, torch.Tensor]:
    """Integer inputs of a case by position, as far as they can be had at a modest cost."""
    specs = {n: spec for n, spec in enumerate(task.input_specs(case)) if isinstance(spec, TensorSpec)}
    if not any(_is_integer(getattr(torch, spec.dtype)) for spec in specs.values()):
        return {}
    if task.host_known:
        task.host_values(case)  # drawn here with everything real, as for the recorder
    try:
        with _WithoutFloats():
            values = task.inputs(case, torch.Generator("cpu").manual_seed(seed), "cpu")
    except TaskError:  # reads values of floating-point tensors, or calls what knows no tensors without memory
        if sum(spec.elements for spec in specs.values()) > REAL_ELEMENTS:
            return {}
        values = task.inputs(case, torch.Generator("cpu").manual_seed(seed), "cpu")
    return {n: value for n, value in enumerate(values) if isinstance(value, torch.Tensor) and _is_had(value)}


def _is_had(value: Input) -> bool:
    assert isinstance(value, torch.Tensor)
    return _is_integer(value.dtype) and value.device.type == "cpu" and value.nbytes <= MOST_BYTES


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


class _WithoutFloats(TorchDispatchMode):
    """Floating-point tensors, and all that is computed from them, live on the meta device; integers are real."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(tensor.is_meta for tensor in tensors):
            return _on_meta(func, args, kwargs)
        if tensors and not ({"device", "dtype"} & kwargs.keys()):
            return func(*args, **kwargs)
        try:
            made = _on_meta(func, args, kwargs)
        # Whatever has no meta kernel is made for real: the cost is memory, never a wrong value.
        except (RuntimeError, NotImplementedError):
            return func(*args, **kwargs)
        floating = isinstance(made, torch.Tensor) and not _is_integer(made.dtype)
        return made if floating else func(*args, **kwargs)


def _on_meta(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to("meta")
        if isinstance(value, torch.Generator):
            return None
        return torch.device("meta") if isinstance(value, torch.device) else value

    arguments = {name: moved(value) if name == "device" else tree_map(moved, value) for name, value in kwargs.items()}
    if "device" in {argument.name for argument in func._schema.arguments}:
        arguments["device"] = torch.device("meta")
    return func(*tree_map(moved, args), **arguments)
