"""Texts of kernels: read from a file, and held against each other."""

from __future__ import annotations

import difflib
from pathlib import Path

from evo_kernel.errors import UserError
from evo_kernel.types import Source


def read_source(file: Path) -> Source:
    """The kernel in a file. Raises UserError with a plain sentence."""
    try:
        return Source(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {file}: it is not UTF-8 text, so it is no Python module") from error


def source_diff(before: str, after: str, parent: int | None, number: int) -> str:
    """What changed between the sources of two candidates, with three lines of context; `parent`: None where there is
    none, and `before` is empty."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"candidate {parent}", f"candidate {number}", lineterm="", n=3
    )
    return "\n".join(lines)
