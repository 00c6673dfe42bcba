"""The gallery: kernels that ship, each with what it computes, where it was confirmed, and how it came about.

A folder a kernel: the module, whose docstring holds mechanism, measurements and dead ends, and `lineage.json`. Its
`champions` are the built-in tasks that the kernel is the champion of, its `lineages` all versions, with differences,
authors and costs. Imports no torch.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from evo_kernel.errors import UserError
from evo_kernel.syntax import parse_module

HOME = Path(__file__).parent
GALLERY = "gallery"
"""What `--start-from` calls it."""


@dataclass(frozen=True)
class Champion:
    """A kernel as the champion of one task. Sizes are named as in the task's cases."""

    file: Path
    name: str  # of the task
    function: str  # of the module, which computes it
    dtype: str  # of tensors
    takes: Mapping[str, str | Sequence[float]]  # of each parameter: sizes of a dense tensor, after its dtype where that
    # is another ("int32 b _", `_` being any size), or the numbers it may be
    only: Mapping[str, Sequence[int]]  # sizes that have to be one of these
    ranges: Mapping[str, Sequence[int]]  # least and greatest of each size among the cases that were verified
    confirmed: Mapping[str, Any]  # score over the fastest baselines, its range over cases, judge, GPU, versions, date
    hidden: Sequence[Mapping[str, Any]]  # hidden cases: sizes, its time and that of the fastest baseline

    @property
    def spec(self) -> str:
        """What `verify` takes."""
        return f"{__name__}.{self.file.parent.name}.{self.file.stem}:{self.function}"

    @cached_property
    def text(self) -> str:
        return self.file.read_text(encoding="utf-8")

    @property
    def docstring(self) -> str:
        return ast.get_docstring(parse_module(self.text)) or ""

    @property
    def lineages(self) -> list[dict[str, Any]]:
        """One of each population that it was bred in, oldest first."""
        return json.loads(self.file.with_name("lineage.json").read_text(encoding="utf-8"))["lineages"]

    @property
    def score_text(self) -> str:
        """The score, against what, on which GPU, and when."""
        rivals, c = " or ".join(sorted({case["baseline"] for case in self.hidden})), self.confirmed
        return f"{c['score']:.2f}x the fastest baseline ({rivals}), {c['gpu']}, {c['date']}"

    @property
    def ranges_text(self) -> str:
        """The ranges that it was verified for."""
        few = {name: takes for name, takes in self.takes.items() if not isinstance(takes, str)} | dict(self.only)
        sizes = [
            f"{name} {' or '.join(map(str, few[name]))}" if name in few else f"{name} {least} to {greatest}"
            for name, (least, greatest) in self.ranges.items()
        ]
        return f"{self.dtype}, {', '.join(sizes)}"

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"file": str(self.file), "kernel": self.spec}


@cache
def champions() -> tuple[Champion, ...]:
    """All of the gallery, by kernel."""
    return tuple(
        Champion(file=path.with_name(f"{path.parent.name}.py"), **row)
        for path in sorted(HOME.glob("*/lineage.json"))
        for row in json.loads(path.read_text(encoding="utf-8"))["champions"]
    )


def champion_named(name: str) -> Champion:
    """Raises UserError."""
    for one in champions():
        if one.name == name:
            return one
    raise UserError(f"there is no champion {name!r}. There are: {', '.join(one.name for one in champions())}")
