"""What the functions of imported problems share: random numbers of their own, limits of memory, names."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from evo_kernel.errors import TaskError

KEPT = (0.9, 1.0)
"""What a number that a benchmark writes out is multiplied with in every draw, so that a remembered output fails."""
_MODULES = itertools.count()
_DRAWING = threading.RLock()  # torch's own generators belong to the process, and judges draw in several threads


@contextlib.contextmanager
def own_numbers(device: torch.device | str) -> Iterator[None]:
    """Whatever is drawn inside from torch's own generators leaves no trace in them. One thread at a time."""
    kind = torch.device(device)
    devices = [kind.index or 0] if kind.type == "cuda" else []
    with _DRAWING, torch.random.fork_rng(devices=devices):
        yield


def drawing_seed(generator: torch.Generator, device: torch.device, without_data: int) -> int:
    """A seed for torch's own generators that follows from a task's; `without_data` under a FakeTensorMode."""
    return without_data if is_fake() else int(torch.randint(1 << 62, (), generator=generator, device=device))


def is_fake() -> bool:
    """Whether tensors are made without data at the moment."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def scaled(written: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Floating-point values that are the same in every draw, times factors: signs, zeros and domains around it stay."""
    wide = torch.promote_types(written.dtype, torch.float32)
    factors = torch.empty_like(written, dtype=wide).uniform_(*KEPT, generator=generator)
    return (written.to(wide) * factors).to(written.dtype)


def importable_names(path: str) -> dict[str, Any]:
    """The names of a new module for a file's code: importable, for Dynamo imports the module of what it reads."""
    module = types.ModuleType(f"_evo_kernel_problem_{next(_MODULES)}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    return vars(module)


def with_parameters(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The function, whose signature names its arguments."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return function


def refuse_too_large(path: str, needed: int, device: torch.device, instead: str) -> None:
    """Raises TaskError where inputs need more bytes than a device can still give."""
    free = free_bytes(device)
    if needed > free:
        raise TaskError(
            f"{path}: the inputs need {needed / 1e9:.1f} GB and {device.type} has {free / 1e9:.1f} GB free. "
            f"Run it on a machine with more memory, or {instead}."
        )


def free_bytes(device: torch.device) -> int:
    """Bytes that a device can still give."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by PyTorch, for nobody
        return torch.cuda.mem_get_info(device)[0] + held
    import psutil  # here: children behind walls import this module too

    return psutil.virtual_memory().available
