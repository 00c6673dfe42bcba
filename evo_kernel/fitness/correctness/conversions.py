"""Finds conversions of floats to integers that do not hold them: C, PyTorch and LLVM leave their results undefined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from evo_kernel.errors import TaskError
from evo_kernel.tasks.task import Task
from evo_kernel.types import CaseKind


@dataclass(frozen=True)
class Conversions:
    """Conversions of floats to integers in one run of a reference."""

    any: bool
    undefined: bool


def conversions(run: Callable[[], object]) -> Conversions:
    """Of a function that runs a reference; none where it fails, or does not allow the dispatch mode."""
    try:
        with _Watch() as seen:
            run()
    except TaskError:
        return Conversions(any=False, undefined=False)
    return Conversions(seen.any, seen.undefined)


def converts(task: Task, device: str) -> bool:
    """Whether a task's reference converts floats to integers, on its smallest check case."""
    smallest = min(task.cases_of(CaseKind.CHECK), key=task.elements, default=None)
    if smallest is None:
        return True
    inputs = task.inputs(smallest, torch.Generator(device).manual_seed(0), device)
    return conversions(lambda: task.outputs(*inputs)).any


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.any = self.undefined = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            source = args[0] if packet is torch.ops.aten._to_copy else args[1]
            if _is_integer(result) and isinstance(source, torch.Tensor) and source.is_floating_point():
                self.any = True
                self.undefined = self.undefined or not _holds(result.dtype, source)
        return result


def _is_integer(value: torch.Tensor) -> bool:
    return not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool


def _holds(dtype: torch.dtype, values: torch.Tensor) -> bool:
    """Whether an integer dtype has all the numbers, without their fractions."""
    info, wide = torch.iinfo(dtype), values.double()
    # Below int64's least number float64 has no number that is more than one less.
    over = wide < info.min if info.bits == 64 else wide <= info.min - 1.0
    return not bool((over | (wide >= float(info.max) + (info.bits < 64)) | wide.isnan()).any())
