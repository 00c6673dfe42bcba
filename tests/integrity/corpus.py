"""Reads the corpus: each file under cheats/ and honest/ with the header that says how it must end (see README.md)."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from evo_kernel.syntax import parse_module
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Task
from evo_kernel.types import Purpose, Source, Status

HERE = Path(__file__).parent
HONEST = "honest"
DEFAULT_TASK = {"cheats": "softmax", "honest": "softmax_rows"}
FIELDS = {"row", "task", "ends", "says", "same plan as", "no faster than", "where", "purpose", "deadline", "scored"}
PLACES = {"anywhere", "gpu", "slow"}
ENDINGS = {Status.REJECTED, Status.WRONG, Status.BUILD_ERROR, Status.RUNTIME_ERROR, Status.TIMEOUT}


@dataclass(frozen=True)
class Entry:
    """One file of the corpus and how it must end."""

    path: Path
    what: str  # the first line of its docstring
    rows: tuple[int, ...] = ()  # of the catalogue of cheats; 60: "new with plans", beyond: ours
    task: str = ""
    ends: frozenset[Status] = frozenset({Status.PASSED})
    says: str = ""  # words that the reason must hold
    twin: str = ""  # an honest file that makes the same plans
    rival: str = ""  # an honest file that it may not beat
    where: str = "anywhere"  # gpu: only a GPU can tell; slow: left out of the quick run
    purpose: Purpose = Purpose.SCORE
    deadline_s: float = 30.0
    scored: str = ""  # when it was found, and now

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def source(self) -> Source:
        return Source(self.path.read_text(encoding="utf-8"))


def load_task(name: str) -> Task:
    """A task of the corpus, or `builtin:NAME`, without torch.compile's kernels, which would take seconds."""
    task = load(name.removeprefix("builtin:") if name.startswith("builtin:") else HERE / "tasks" / f"{name}.py")
    setattr(task.reference_function, "compiled_baseline", False)
    return task


@cache
def entries(folder: str) -> tuple[Entry, ...]:
    """All files of a folder, by name."""
    return tuple(read(path) for path in sorted((HERE / folder).glob("*.py")))


def read(path: Path) -> Entry:
    """A file's header. Raises ValueError, naming the file, for what a header may not say."""
    text = ast.get_docstring(parse_module(path.read_text(encoding="utf-8"))) or ""
    what, _, rest = text.partition("\n")
    fields: dict[str, str] = {}
    for line in rest.strip().splitlines():
        name, colon, value = line.partition(":")
        if not colon or name not in FIELDS or name in fields:
            raise ValueError(f"{path.name}: {line!r} is no field of a header; fields are {', '.join(sorted(FIELDS))}")
        fields[name] = value.strip()
    if not what.endswith("."):
        raise ValueError(f"{path.name}: its docstring starts with a sentence that says what it does")
    return Entry(path, what, **_values(path, fields))


def _values(path: Path, fields: dict[str, str]) -> dict:
    """Constructor arguments from a header's fields."""
    values: dict = {"twin": fields.get("same plan as", ""), "says": fields.get("says", "")}
    values["scored"] = fields.get("scored", "")
    values["rival"] = fields.get("no faster than", "")
    values["task"] = fields.get("task", DEFAULT_TASK[path.parent.name])
    values["where"] = fields.get("where", "anywhere")
    values["rows"] = tuple(int(row) for row in fields.get("row", "").split(",") if row)
    values["purpose"] = Purpose(fields.get("purpose", "score"))
    values["deadline_s"] = float(fields.get("deadline", "30"))
    if values["where"] not in PLACES:
        raise ValueError(f"{path.name}: where is {values['where']!r}; choose from {', '.join(sorted(PLACES))}")
    if path.parent.name == "cheats":
        words = {word.strip() for word in fields.get("ends", "").split(",")}
        values["ends"] = frozenset(Status(word) for word in words - {HONEST})
        if HONEST in words and not values["twin"] and not values["rival"]:
            raise ValueError(f"{path.name}: what ends honest names a file: `same plan as` or `no faster than`")
        if not values["ends"] <= ENDINGS:
            raise ValueError(f"{path.name}: a cheat ends in {', '.join(sorted(ENDINGS))}, or honest")
        if not values["rows"]:
            raise ValueError(f"{path.name}: a cheat names its row of the catalogue")
    return values
