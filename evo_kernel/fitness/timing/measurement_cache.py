"""Cache of measurements: ceilings and the times of a task's baselines between runs.

One small file for each environment or task, in the user's cache folder. Its name is the hash of everything that affects
the values (GPU, driver, versions, assembler, judge, task), and the file repeats this key: values of another key are
never used. `evo-kernel doctor` lists and removes the files.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evo_kernel import user_cache
from evo_kernel.types import Environment, content_hash

_Time = Annotated[float, Field(gt=0.0, lt=math.inf)]
_Name = Annotated[str, Field(max_length=200)]
Values = Mapping[str, Mapping[str, float]]
"""Numbers by name, by case; ceilings are stored as `ceilings.CEILINGS`."""


def cache_key(environment: Environment, card: str) -> dict[str, str]:
    """What affects the speed of a GPU and its libraries. `card`: identifies it among others of its model."""
    names = ("kind", "device", "driver", "torch", "triton", "fp_fusion", "judge")
    return {name: str(getattr(environment, name)) for name in names} | {"card": card}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    found: dict[_Name, str]  # the cache key
    values: Annotated[dict[_Name, dict[_Name, _Time]], Field(max_length=1000)]


class MeasurementCache:
    """Cached values of one key. Processes may share the files; the last writer of a case wins."""

    def __init__(self, found: Mapping[str, str]) -> None:
        self._found = dict(found)
        self.path = user_cache.folder() / f"{content_hash(self._found)[:32]}.json"

    def read(self) -> Values:
        """Empty where there is nothing, or nothing whole."""
        kept = _read(self.path)
        return kept.values if kept is not None and kept.found == self._found else {}

    def add(self, name: str, values: Mapping[str, float]) -> None:
        """Store the numbers of one case. Failures are ignored: the values will be measured again."""
        with contextlib.suppress(ValidationError):
            kept = _File(found=self._found, values={**_plain(self.read()), name: dict(values)})
            user_cache.write(self.path, kept.model_dump_json())


def listed() -> list[Mapping[str, str]]:
    """Keys of the files, newest first."""
    with contextlib.suppress(OSError):
        files = sorted(user_cache.folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        return [file.found for file in map(_read, files) if file is not None]
    return []


def _read(path: Path) -> _File | None:
    try:
        return _File.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _plain(values: Values) -> dict[str, dict[str, float]]:
    return {case: dict(numbers) for case, numbers in values.items()}
