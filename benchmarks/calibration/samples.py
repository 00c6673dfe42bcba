"""One measured plan with what the model reads of it, and the two forms it is kept in.

While plans are being measured each is one line of JSON, appended and flushed, so that a run that is cut short leaves
what it had. `pack` makes one gzipped file of any number of those: the same rows, with the names of instruction classes
and traffic counts told once, and six digits of each number.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from evo_kernel.fitness.facts import LaunchFacts, PlanFacts
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic
from evo_kernel.fitness.torch_costs import TorchCost

SHIPPED = Path(__file__).with_name("h200.jsonl.gz")
_TRAFFIC = tuple(field.name for field in fields(LaunchTraffic))
_PLAIN = ("registers", "shared_bytes", "num_warps", "num_stages", "num_ctas")


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
    """One line of JSON without its end."""
    return json.dumps(asdict(sample), separators=(",", ":"))


def from_data(data: Mapping[str, Any]) -> Sample:
    launches = tuple(
        LaunchFacts(**{**one, "traffic": LaunchTraffic(**one["traffic"]), "loops": tuple(one.get("loops", ()))})
        for one in data["facts"]["launches"]
    )
    facts = PlanFacts(launches, tuple(TorchCost(**one) for one in data["facts"]["others"]))
    knobs = tuple((str(name), int(value)) for name, value in data["knobs"])
    return Sample(**{**data, "knobs": knobs, "facts": facts})


def read(paths: Iterable[Path]) -> list[Sample]:
    """Samples of raw (.jsonl) and packed (.gz) files, each plan of a case once. A torn last line is left out."""
    found: dict[tuple[str, str, str], Sample] = {}
    for path in paths:
        made = _unpacked(path)[1] if path.suffix == ".gz" else _raw(path)
        for sample in made:
            found.setdefault(sample.key, sample)
    return list(found.values())


def _raw(path: Path) -> list[Sample]:
    made = []
    for line in path.read_text().splitlines():
        try:
            made.append(from_data(json.loads(line)))
        except json.JSONDecodeError:  # cut short while it was written
            continue
    return made


def about(path: Path) -> dict[str, Any]:
    """What a packed file says of its origin: device, versions, command, date."""
    return _unpacked(path)[0]


def pack(samples: Sequence[Sample], path: Path, origin: Mapping[str, Any]) -> None:
    """Write the packed form. The same samples and origin give the same bytes."""
    names = sorted({name for s in samples for launch in s.facts.launches for name in launch.instructions})
    head = {"about": dict(origin), "instructions": names, "plain": _PLAIN, "traffic": _TRAFFIC}
    lines = [json.dumps(head)]
    for sample in sorted(samples, key=lambda s: (s.task, s.structure, s.source, s.case, s.plan)):
        launches = [
            [
                [getattr(launch, name) for name in _PLAIN],
                [launch.instructions.get(name, 0) for name in names],
                [_short(getattr(launch.traffic, name)) for name in _TRAFFIC],
                launch.loops,
            ]
            for launch in sample.facts.launches
        ]
        others = [asdict(one) for one in sample.facts.others]
        row = [getattr(sample, field.name) for field in fields(Sample) if field.name != "facts"]
        lines.append(json.dumps([[_short(v) for v in row], launches, others], separators=(",", ":")))
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 9, mtime=0))


def _unpacked(path: Path) -> tuple[dict[str, Any], list[Sample]]:
    head_line, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    head = json.loads(head_line)
    row_names = [field.name for field in fields(Sample) if field.name != "facts"]
    made = []
    for line in lines:
        row, launches, others = json.loads(line)
        facts = {"launches": [_launch(head, *launch) for launch in launches], "others": others}
        made.append(from_data({**dict(zip(row_names, row, strict=True)), "facts": facts}))
    return head["about"], made


def _launch(
    head: Mapping[str, Any], plain: list[int], counts: list[int], seen: list[Any], loops: Sequence[dict[str, int]] = ()
) -> dict[str, Any]:
    instructions = {name: count for name, count in zip(head["instructions"], counts, strict=True) if count}
    return {
        **dict(zip(head["plain"], plain, strict=True)),
        "instructions": instructions,
        "traffic": {name: value for name, value in zip(head["traffic"], seen, strict=True) if name in _TRAFFIC},
        "loops": loops,
    }


def _short(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, float | Mapping):
        return value
    if isinstance(value, Mapping):
        return {name: _short(part) for name, part in value.items()}
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def rounded(sample: Sample) -> Sample:
    """The sample as it comes back from a packed file."""
    launches = tuple(
        replace(
            launch,
            instructions={name: count for name, count in launch.instructions.items() if count},
            traffic=LaunchTraffic(**{name: _short(getattr(launch.traffic, name)) for name in _TRAFFIC}),
        )
        for launch in sample.facts.launches
    )
    return replace(
        sample, us=_short(sample.us), iqr_us=_short(sample.iqr_us), facts=replace(sample.facts, launches=launches)
    )
