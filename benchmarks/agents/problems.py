"""The problems that agents are measured on: parents, and kernels with one planted fault. Made once, by `prepare`."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from evo_kernel.types import Source, Strategy

SHIPPED = Path(__file__).with_name("problems.json.gz")
CATEGORIES = ("compile", "load-store", "calculation", "launch")


@dataclass(frozen=True)
class Parent:
    """A kernel whose every offered action is measured. `path`: from the task's first kernel, oldest first."""

    id: str  # "softmax.3"
    task: str
    path: tuple[Strategy, ...]
    text: str

    @property
    def depth(self) -> int:
        return len(self.path)

    @property
    def source(self) -> Source:
        return Source(self.text)


@dataclass(frozen=True)
class Planted:
    """A kernel that was right until one fault was planted. `text` has it, `right` is the kernel without it."""

    id: str  # "launch.4"
    category: str  # one of CATEGORIES
    mutation: str  # what was done, for people; never shown to a model
    task: str
    parent: str  # id of the parent whose text it was
    text: str
    right: str
    status: str  # how the judge on a CPU ended, and what it said
    reason: str

    @property
    def source(self) -> Source:
        return Source(self.text)


@dataclass(frozen=True)
class Problems:
    """All of them, in a fixed order."""

    parents: tuple[Parent, ...]
    planted: tuple[Planted, ...]

    @property
    def sha256(self) -> str:
        """Of what is measured: a ground truth belongs to one set of problems."""
        texts = [[one.id, one.text] for one in (*self.parents, *self.planted)]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()

    def parent(self, name: str) -> Parent:
        return next(one for one in self.parents if one.id == name)


def save(problems: Problems, path: Path = SHIPPED) -> None:
    """The same problems give the same bytes."""
    text = json.dumps(asdict(problems), separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def load(path: Path = SHIPPED) -> Problems:
    data = json.loads(gzip.decompress(path.read_bytes()))
    parents = (Parent(**{**one, "path": tuple(map(strategy_of, one["path"]))}) for one in data["parents"])
    return Problems(tuple(parents), tuple(Planted(**one) for one in data["planted"]))


def strategy_of(data: dict[str, object]) -> Strategy:
    """A strategy from what `dataclasses.asdict` and JSON made of it."""
    parameters = tuple((str(name), value) for name, value in data["parameters"])  # type: ignore[attr-defined,misc]
    return Strategy(str(data["name"]), str(data["family"]), str(data["region"]), parameters)
