"""Sources with knob settings, to be judged or compiled together: reads `--knobs` and `--settings`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.knobs import apply_knobs, knob_names
from evo_kernel.types import Knobs, Source

FORMAT = 'a JSON list of objects, or one object a line, such as {"BLOCK": 128, "my_kernel.config": 0}'


_WHOLE = re.compile(r"-?\d{1,40}")


@dataclass(frozen=True)
class Variant:
    """A source of a file with one setting of its knobs written in; () is the source as it stands."""

    file: str
    knobs: Knobs
    source: Source

    @property
    def setting(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.knobs)

    @property
    def name(self) -> str:
        return f"{self.file} {self.setting}".strip()

    def as_data(self) -> dict[str, Any]:
        return {"file": self.file, "setting": dict(self.knobs)}


def variants_of(files: Sequence[tuple[str, Source]], settings: Sequence[Knobs]) -> list[Variant]:
    """Every setting of every file; each file as it stands where there are no settings. Raises UserError."""
    for file, source in files:
        known = knob_names(source)
        for name in {name for knobs in settings for name, _ in knobs} - set(known):
            raise UserError(
                f"{file} has no knob {name}; it has {', '.join(known) or 'none'}. A knob is an upper-case integer "
                "constant of the module (BLOCK = 128), or KERNEL.config, a position in the list of @triton.autotune."
            )
    return [Variant(file, knobs, apply_knobs(source, knobs)) for file, source in files for knobs in settings or [()]]


def settings_of(given: Iterable[str], file: Path | None) -> list[Knobs]:
    """Settings as they were typed (`BLOCK=128,STAGES=3`), then those of a file. Raises UserError."""
    return [_typed(text) for text in given] + (_read(file) if file is not None else [])


def _typed(text: str) -> Knobs:
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    return _knobs({name.strip(): value.strip() for name, _, value in pairs}, f"--knobs {text}")


def _read(file: Path) -> list[Knobs]:
    try:
        text = file.read_text(encoding="utf-8").strip()
        listed = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines() if line]
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"--settings {file}: {error}. It holds {FORMAT}.") from error
    if not listed or not all(isinstance(one, dict) for one in listed):
        raise UserError(f"--settings {file}: it holds no list of settings. Write {FORMAT}.")
    return [_knobs(one, f"--settings {file}, setting {number}") for number, one in enumerate(listed, start=1)]


def _knobs(values: Mapping[str, Any], where: str) -> Knobs:
    if not all(isinstance(value, (int, str)) and _WHOLE.fullmatch(str(value)) for value in values.values()):
        raise UserError(f"{where}: a knob's value is a whole number: NAME=NUMBER,NAME=NUMBER, of at most 40 digits")
    return tuple((name, int(value)) for name, value in values.items())
