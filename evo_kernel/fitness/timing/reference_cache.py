"""What this machine found out about itself, from run to run: a GPU's ceilings, and the times of a task's baselines.

One small file an environment or task, in the user's cache folder. Its name is the hash of all that decides what is in
it (card, driver, versions, assembler, judge, task), and it repeats that: what was found under other circumstances is
never used. `evo-kernel doctor` tells what is there, and removes it.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evo_kernel.types import Environment, content_hash

_Time = Annotated[float, Field(gt=0.0, lt=math.inf)]
_Name = Annotated[str, Field(max_length=200)]
Values = Mapping[str, Mapping[str, float]]
"""Numbers by name, by case or, of ceilings, by `CEILINGS`."""
CEILINGS = "ceilings"


def circumstances(environment: Environment, card: str) -> dict[str, str]:
    """What decides how fast a GPU and its libraries are. `card`: what tells it from others of its model."""
    names = ("kind", "device", "driver", "torch", "triton", "fp_fusion", "judge")
    return {name: str(getattr(environment, name)) for name in names} | {"card": card}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    found: dict[_Name, str]  # under which circumstances
    values: Annotated[dict[_Name, dict[_Name, _Time]], Field(max_length=1000)]


def folder() -> Path:
    """Where the files are: $XDG_CACHE_HOME/evo-kernel, in the user's home if that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "evo-kernel"


class Remembered:
    """What was found under these circumstances. Processes may share the files: the last one to write a case is kept."""

    def __init__(self, found: Mapping[str, str]) -> None:
        self._found = dict(found)
        self.path = folder() / f"{content_hash(self._found)[:32]}.json"

    def read(self) -> Values:
        """Empty where there is nothing, or nothing whole."""
        kept = _read(self.path)
        return kept.values if kept is not None and kept.found == self._found else {}

    def add(self, name: str, values: Mapping[str, float]) -> None:
        """Keep the numbers of one case. Where that cannot be done nothing is kept: they will be found again."""
        with contextlib.suppress(OSError, ValidationError):
            kept = _File(found=self._found, values={**_plain(self.read()), name: dict(values)})
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, suffix=".new", delete=False) as file:
                file.write(kept.model_dump_json())
            os.replace(file.name, self.path)


def listed() -> list[Mapping[str, str]]:
    """Under which circumstances the files were written, the newest first."""
    with contextlib.suppress(OSError):
        files = sorted(folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        return [kept.found for kept in map(_read, files) if kept is not None]
    return []


def clear() -> int:
    """Remove all of them, torn ones too; how many there were. Raises OSError."""
    files = [*folder().glob("*.json"), *folder().glob("*.new")]
    for file in files:
        file.unlink(missing_ok=True)
    return len(files)


def _read(path: Path) -> _File | None:
    try:
        return _File.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _plain(values: Values) -> dict[str, dict[str, float]]:
    return {case: dict(numbers) for case, numbers in values.items()}
