"""Explains in a sentence why a reference cannot be traced: it reads values, it fails by itself, or the tracer does."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from evo_kernel.tasks.task import describe

VALUES = (
    "The reference cannot be traced: what it does depends on tensor values (.item(), float(tensor), if tensor:, "
    "nonzero), which are known to no launch. Keep them in tensors (x.sum() instead of x.sum().item(), torch.where "
    'instead of if), or give the task a first kernel: SEED = "kernel.py".'
)
"""What is said of a reference that reads tensors' values."""
REMARKING = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor", "torch._inductor")


def reads_values(error: Exception) -> bool:
    """Whether a trace failed because the reference wanted to know what is in a tensor."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # slow: it imports sympy

    known = isinstance(error, DataDependentOutputException | DynamicOutputShapeException | GuardOnDataDependentSymNode)
    return known or ".numpy() is not supported" in str(error)


def brief(error: Exception) -> str:
    """An exception as its class and its first line, without the tracer's own class names."""
    return describe(error).rstrip(".").replace("FakeTensor", "Tensor")


def own_failure(reference: Callable[..., Any], inputs: Sequence[Any]) -> str | None:
    """What to say of a reference that fails with plain sizes too; None where it is only the trace that fails."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with quiet(), mode:
        plain = [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
            if isinstance(value, torch.Tensor)
            else value
            for value in inputs
        ]
        try:
            reference(*plain)
        except Exception as error:  # noqa: BLE001  whatever the user's reference raises
            if reads_values(error) or _of_fakes(error):
                return None
            shapes = ", ".join(str(list(v.shape)) if isinstance(v, torch.Tensor) else repr(v) for v in inputs)
            return f"The reference itself fails for inputs of {shapes} ({brief(error)}). Mend it, or these inputs."
    return None


def _of_fakes(error: Exception) -> bool:
    """Whether an operation failed because tensors have no data here; with data it may work."""
    own = isinstance(error, NotImplementedError) or type(error).__module__.startswith("torch")
    return own or (isinstance(error, RuntimeError) and bool(re.search(r"(?i)fake|\bmeta\b|data.pointer", str(error))))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the tracer's and Inductor's remarks on what fails: that is raised, and said in a sentence."""
    loggers = [logging.getLogger(name) for name in REMARKING]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
