"""What the importers of benchmarks share: reading a checkout, naming one of its problems, what its kernels may call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from evo_kernel.errors import LoweringError, TaskError
from evo_kernel.tasks.task import describe, without_data

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


def allow_of(reference: Callable[[], Callable[..., Any]], inputs: Callable[[], Sequence[Sequence[Any]] | None]) -> str:
    """`kernels` where every operation of the reference has a kernel to start from, else `mixed`.

    `inputs`: of each check case, tensors or their specs; None where it is not worth trying.
    """
    from evo_kernel.tasks.lowering import lower_function

    try:
        if (cases := inputs()) is None:
            return "mixed"
        lower_function(reference(), [[without_data(value) for value in case] for case in cases], allow_aten=False)
    except (LoweringError, TaskError):
        return "mixed"
    except Exception:  # noqa: BLE001  the problem's own code may raise anything; checking the task will say it
        return "mixed"
    return "kernels"
