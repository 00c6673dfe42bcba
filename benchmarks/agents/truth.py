"""The ground truth: what was measured of every action on every parent, and the file it is kept in.

While it is measured each row is one line of JSON in a part file, flushed; `merge` makes one gzipped file of them. Rows
of a kind, by `kind`: environment, parent, profile, action, planted, done (a parent with nothing left), trouble.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evo_kernel.types import (
    Environment,
    Evaluation,
    KernelFeatures,
    Knobs,
    Measurement,
    PlanFeatures,
    Purpose,
    Status,
)

SHIPPED = Path(__file__).with_name("truth.jsonl.gz")
Row = dict[str, Any]


def key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What a row is about; a later row of the same key replaces an earlier one."""
    match row["kind"]:
        case "action":
            return ("action", row["parent"], row["key"])
        case "environment":
            return ("environment", json.dumps(row["environment"], sort_keys=True))
        case kind:
            return (kind, row["id"])


def line(row: Mapping[str, Any]) -> str:
    return json.dumps(_short(row), separators=(",", ":"), default=str)


def read(path: Path) -> list[Row]:
    """The rows of a packed file and of the parts beside it; a torn last line of a part is left out."""
    rows: dict[tuple[str, ...], Row] = {}
    if path.exists():
        for text in gzip.decompress(path.read_bytes()).decode().splitlines():
            row = json.loads(text)
            rows[key_of(row)] = row
    for part in parts(path):
        for text in part.read_text().splitlines():
            try:
                row = json.loads(text)
            except json.JSONDecodeError:  # cut short while it was written
                continue
            rows[key_of(row)] = row
    return list(rows.values())


def parts(path: Path) -> list[Path]:
    return sorted(path.parent.glob(path.name + ".part*"))


def part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.part{number}")


def merge(path: Path) -> list[Row]:
    """Pack what `read` finds, then remove the parts. The same rows give the same bytes."""
    rows = sorted((row for row in read(path) if row["kind"] != "trouble"), key=key_of)
    path.write_bytes(gzip.compress("".join(line(row) + "\n" for row in rows).encode(), 9, mtime=0))
    for one in parts(path):
        one.unlink()
    return rows


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def gain_of(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Parent ÷ child of an action that passed, geometric mean over cases, and an interval that is wide, not narrow.

    By pairs; by what tuning measured (with no interval) where a case has none.
    """
    pairs = [one for one in row["pairs"].values()]
    if not pairs or any(one[0] is None for one in pairs):
        gain = math.exp(row["log_gain"])
        return gain, gain, gain
    ratio, low, high = (math.exp(sum(math.log(one[at]) for one in pairs) / len(pairs)) for at in range(3))
    return ratio, low, high


# -- evaluations -----------------------------------------------------------------------------------------------------


def evaluation_data(found: Evaluation) -> Row:
    """All that a prompt or a witness reads of an evaluation."""
    return {
        "source": found.source, "task": found.task, "environment": asdict(found.environment),
        "status": str(found.status), "reason": found.reason, "score": found.score, "knobs": found.knobs,
        "measurements": [asdict(one) for one in found.measurements],
    }  # fmt: skip


def evaluation_of(data: Mapping[str, Any]) -> Evaluation:
    return Evaluation(
        data["source"], data["task"], Purpose.SCORE, Environment(**data["environment"]), Status(data["status"]),
        data["reason"], data["score"], knobs_of(data["knobs"]),
        measurements=tuple(_measurement(one) for one in data["measurements"]),
    )  # fmt: skip


def knobs_of(data: Sequence[Sequence[Any]]) -> Knobs:
    return tuple((str(name), int(value)) for name, value in data)


def _measurement(data: Mapping[str, Any]) -> Measurement:
    features = data["features"]
    return Measurement(**{**data, "features": None if features is None else _features(features)})


def _features(data: Mapping[str, Any]) -> PlanFeatures:
    kernels = tuple(KernelFeatures(**{**one, "grid": tuple(one["grid"])}) for one in data["kernels"])
    return PlanFeatures(**{**data, "kernels": kernels})


def times_of(found: Evaluation) -> dict[str, list[Any]]:
    """By case: median, its interval, samples, plan."""
    return {m.case: [m.median_us, m.low_us, m.high_us, m.n, m.plan[:16]] for m in found.measurements}


def _short(value: Any) -> Any:
    """Six digits of each number."""
    if isinstance(value, Mapping):
        return {str(name): _short(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value
