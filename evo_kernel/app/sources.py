"""Texts of kernels: read from a file, and held against each other."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from evo_kernel.errors import UserError
from evo_kernel.types import Source

LONGEST = 4 * 2**20
"""Characters: a module that is longer was written by no mind."""


def read_source(file: Path) -> Source:
    """The kernel in a file (`-`: standard input). Raises UserError with a plain sentence."""
    name = "standard input" if str(file) == "-" else str(file)
    try:
        with click.open_file(str(file), encoding="utf-8") as stream:
            text = stream.read(LONGEST + 1)
    except OSError as error:
        raise UserError(f"cannot read {name}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {name}: it is not UTF-8 text, so it is no Python module") from error
    if len(text) > LONGEST:
        raise UserError(f"{name} is longer than {LONGEST} characters: give one Python module with `run(*inputs)`")
    if not text.strip():
        raise UserError(f"{name} is empty: give one Python module with `run(*inputs)`")
    return Source(text)


def source_diff(before: str, after: str, parent: int | None, number: int) -> str:
    """What changed between the sources of two candidates, with three lines of context; `parent`: None where there is
    none, and `before` is empty."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"candidate {parent}", f"candidate {number}", lineterm="", n=3
    )
    return "\n".join(lines)
