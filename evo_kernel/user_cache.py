"""The cache folder that runs of one user share. Each file is written whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from evo_kernel.types import content_hash

LOCK = ".lock"
"""Suffix of files that hold locks; they stay."""


def folder() -> Path:
    """$XDG_CACHE_HOME/evo-kernel, by default in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "evo-kernel"


def write(path: Path, text: str) -> None:
    """Write a file of the folder; processes may do so side by side. Failures are ignored: it will be found again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".new", delete=False, encoding="utf-8") as file:
            file.write(text)
        os.replace(file.name, path)


def path_of(key: object, suffix: str) -> Path:
    """The file for a key (see content_hash)."""
    return folder() / f"{content_hash(key)[:32]}.{suffix}"


def kept(key: object, suffix: str, make: Callable[[], str]) -> str:
    """The text of the file for a key; made and written if there is none."""
    path = path_of(key, suffix)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    text = make()
    write(path, text)
    return text


@cache
def code_hash(package: Path) -> str:
    """Hash of a package's Python files: what its code makes belongs in no other version's key."""
    return content_hash([path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))])


def clear() -> int:
    """Remove all files; returns how many. Raises OSError."""
    files = [path for path in folder().glob("*") if path.is_file() and path.suffix != LOCK]
    for file in files:
        file.unlink(missing_ok=True)
    return len(files)
