"""The tasks that a suite's name stands for: built in, of a benchmark's checkout, or listed in a text file."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evo_kernel.errors import UserError


@dataclass(frozen=True)
class SuiteTask:
    """One task of a suite."""

    spec: str
    label: str
    group: str

    @property
    def name(self) -> str:
        """Of its files."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", self.label)

    @property
    def population(self) -> str:
        """Its population's file name."""
        return self.name + ".db"


def tasks_of(suite: str, only: Sequence[str], but: Sequence[str] = ()) -> list[SuiteTask]:
    """The tasks that a suite's name stands for. Raises UserError."""
    found = _all_of(suite)
    if only:
        found = [one for one in found if any(fnmatch.fnmatchcase(one.label, pattern) for pattern in only)]
    found = [one for one in found if not any(fnmatch.fnmatchcase(one.label, pattern) for pattern in but)]
    if not found:
        listed = "tasks list" if suite == "builtin" else f"tasks import {suite}"
        raise UserError(f"no task of {suite} fits {', '.join(only) or 'it'}; `evo-kernel {listed}` names them")
    return found


def _all_of(suite: str) -> list[SuiteTask]:
    from evo_kernel.tasks.loading import builtin_names, importer_of

    if suite == "builtin":
        return [SuiteTask(name, name, "builtin") for name in builtin_names()]
    importer = importer_of(suite)
    if importer is not None:
        return [SuiteTask(entry.spec, entry.label, entry.group) for entry in importer.entries(suite.partition(":")[2])]
    path = Path(suite).expanduser()
    if not path.is_file():
        raise UserError(
            f"there is no suite {suite!r}: name `builtin`, a benchmark's checkout such as kernelbench:PATH/level1, or "
            "a text file with a TASK a line"
        )
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text ({error}): name a text file with a TASK a line") from error
    specs = list(dict.fromkeys(line for line in lines if line))
    labels = [Path(spec).stem if spec.endswith(".py") else spec for spec in specs]
    twice = [label for label in labels if labels.count(label) > 1]
    return [
        SuiteTask(spec, spec if label in twice else label, path.stem) for spec, label in zip(specs, labels, strict=True)
    ]
