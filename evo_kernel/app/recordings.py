"""Where what is said to models goes to, or comes from: `--record` and `--replay`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Traffic:
    """`record`: a file that all is appended to. `replay`: a recording that answers in place of the models."""

    record: Path | None = None
    replay: Path | None = None
