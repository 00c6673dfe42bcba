"""One measured plan with what the model reads of it, and the files that it is kept in.

A row is one line of JSON. While plans are being measured lines are appended and flushed, so that a run that is cut
short leaves what it had. `pack` makes one compressed file of any number of those, below a line that says where its rows
come from.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from evo_kernel.fitness.costmodel.facts import LaunchFacts, PlanFacts
from evo_kernel.fitness.costmodel.torch_costs import TorchCost
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic, ProgramWork
from operators.learning.tree import short

SHIPPED = Path(__file__).with_name("h200.jsonl.xz")
_TRAFFIC = {field.name for field in fields(LaunchTraffic)}  # files may hold counts that the model reads no longer


@dataclass(frozen=True)
class Sample:
    """One plan on one case. `structure` numbers the source's shape before its knobs were set, within task and seed."""

    task: str
    case: str
    source: str  # start of the source's sha256
    structure: str
    knobs: tuple[tuple[str, int], ...]
    plan: str  # start of the plan's hash
    us: float  # measured, median
    iqr_us: float
    n: int
    facts: PlanFacts

    @property
    def key(self) -> tuple[str, str, str]:
        return self.task, self.case, self.plan


def as_line(sample: Sample) -> str:
    """One line of JSON without its end; six digits of each number."""
    return json.dumps(short(asdict(sample)), separators=(",", ":"))


def from_line(line: str) -> Sample:
    data = json.loads(line)
    told = data["facts"]
    others = told["others"] if "others" in told else [{"moved_bytes": count} for count in told["moved_bytes"]]
    facts = PlanFacts(tuple(map(_launch, told["launches"])), tuple(TorchCost(**one) for one in others))
    knobs = tuple((str(name), int(value)) for name, value in data["knobs"])
    return Sample(**{**data, "knobs": knobs, "facts": facts})


def _launch(data: Mapping[str, Any]) -> LaunchFacts:
    traffic = {name: value for name, value in data["traffic"].items() if name in _TRAFFIC}
    traffic["busiest"] = tuple(ProgramWork(**one) for one in traffic.get("busiest", ()))
    return LaunchFacts(**{**data, "traffic": LaunchTraffic(**traffic), "loops": tuple(data.get("loops", ()))})


def read(paths: Iterable[Path]) -> list[Sample]:
    """Samples of raw (.jsonl) and packed (.xz) files, each plan of a case once. A torn last line is left out."""
    found: dict[tuple[str, str, str], Sample] = {}
    for path in paths:
        lines = _packed(path)[1:] if path.suffix == ".xz" else path.read_text().splitlines()
        for line in lines:
            try:
                sample = from_line(line)
            except json.JSONDecodeError:  # cut short while it was written
                continue
            found.setdefault(sample.key, sample)
    return list(found.values())


def about(path: Path) -> dict[str, Any]:
    """What a packed file says of its origin: device, versions, command, date."""
    return json.loads(_packed(path)[0])["about"]


def pack(samples: Sequence[Sample], path: Path, origin: Mapping[str, Any]) -> None:
    """Write the packed form. The same samples and origin give the same bytes."""
    ordered = sorted(samples, key=lambda s: (s.task, s.structure, s.source, s.case, s.plan))
    lines = [json.dumps({"about": dict(origin)}), *map(as_line, ordered)]
    path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))


def _packed(path: Path) -> list[str]:
    return lzma.decompress(path.read_bytes()).decode().splitlines()
