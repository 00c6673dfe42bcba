"""What the importers of benchmarks share: finding and reading problems, and functions that are made of them."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from evo_kernel.errors import LoweringError, TaskError
from evo_kernel.tasks.task import describe

Entry = TypeVar("Entry")


def read_text(path: Path, what: str = "file") -> str:
    """Raises TaskError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {describe(error)}. Check the {what} out again.") from error


def only(found: Sequence[Entry], spec: str, example: str, what: str = "problems") -> Entry:
    """The one of `found`, which `spec` names. Raises TaskError where it names several, or none."""
    if len(found) != 1:
        raise TaskError(
            f"{spec} names {len(found)} {what}, and a task is one: add its name, such as "
            f"{getattr(found[0], 'spec', example) if found else example}. `evo-kernel tasks import {spec} --list` "
            "lists them."
        )
    return found[0]


def did_you_mean(wanted: str, names: Sequence[str]) -> str:
    """A hint that begins with a space; empty where nothing is near."""
    near = difflib.get_close_matches(wanted, names, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def allow_of(reference: Callable[[], Callable[..., Any]], inputs: Callable[[], Sequence[Sequence[Any]] | None]) -> str:
    """`kernels` where every operation of the reference has a kernel to start from, else `mixed`.

    `inputs`: of each check case, on the meta device; None where it is not worth trying.
    """
    from evo_kernel.tasks.lowering import lower_function

    try:
        if (drawn := inputs()) is None:
            return "mixed"
        lower_function(reference(), drawn, allow_aten=False)
    except (LoweringError, TaskError):
        return "mixed"
    except Exception:  # noqa: BLE001  the problem's own code may raise anything; checking the task will say it
        return "mixed"
    return "kernels"


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
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62  # a machine that does not say
