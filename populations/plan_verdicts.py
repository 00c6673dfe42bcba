"""What was found out about plans outside of any candidate: an agent's evaluations, of sources that it never committed.

With them a plan that an agent had evaluated costs nothing in a later session either.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import astuple, fields
from typing import Any

from evo_kernel.types import CheckResult, Measurement, PlanVerdict, Status
from populations.encoding import decode_features, dumps, encode_features, loads

_FIELDS = tuple(field.name for field in fields(Measurement) if field.name != "features")


def write_findings(connection: sqlite3.Connection, environment: int, verdicts: Iterable[PlanVerdict]) -> None:
    """`environment`: a row of environments."""
    connection.executemany(
        "INSERT INTO findings (environment, case_name, plan, status, reason, check_result, measurement, at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                environment, one.case, one.plan, str(one.status), one.reason,
                dumps(astuple(one.check)) if one.check is not None else None,
                _encode(one.measurement) if one.measurement is not None else None, time.time(),
            )
            for one in verdicts
        ),
    )  # fmt: skip


def fetch_findings(connection: sqlite3.Connection, environment_key: str) -> Iterator[PlanVerdict]:
    """Oldest first."""
    rows = connection.execute(
        "SELECT f.case_name, f.plan, f.status, f.reason, f.check_result, f.measurement FROM findings f"
        " JOIN environments n ON n.id = f.environment WHERE n.key = ? ORDER BY f.id",
        (environment_key,),
    )
    for case, plan, status, reason, check, measurement in rows:
        yield PlanVerdict(
            case,
            plan,
            Status(status),
            reason,
            CheckResult(*loads(check)) if check is not None else None,
            _decode(measurement) if measurement is not None else None,
        )


def _encode(one: Measurement) -> str:
    data: dict[str, Any] = {name: getattr(one, name) for name in _FIELDS}
    data |= {"baselines_us": dict(one.baselines_us), "details": dict(one.details)}
    data["features"] = encode_features(one.features) if one.features is not None else None
    return dumps(data)


def _decode(text: str) -> Measurement:
    data = loads(text)
    features = data.pop("features")
    known = {name: value for name, value in data.items() if name in _FIELDS}
    return Measurement(**known, features=decode_features(features) if features is not None else None)
