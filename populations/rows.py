"""Values of evo_kernel.types as columns (JSON, with floats exact), and read back from rows as they were told.

Reading works on any connection, the writer's or a reader's.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any

from evo_kernel.types import (
    Call,
    CaseKind,
    CheckResult,
    Decision,
    Environment,
    Evaluation,
    KernelFeatures,
    Knobs,
    Measurement,
    PairedComparison,
    PlanFeatures,
    PlanVerdict,
    Proposal,
    Purpose,
    Rival,
    Source,
    Status,
    Step,
    Strategy,
)
from populations.connect import fetch_dicts

dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
loads = json.loads

_KERNEL_FIELDS = tuple(KernelFeatures.__dataclass_fields__)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def encode_knobs(knobs: Knobs) -> str:
    return dumps(knobs) if knobs else "[]"


def decode_knobs(text: str) -> Knobs:
    return tuple((name, value) for name, value in loads(text)) if text != "[]" else ()


def encode_features(features: PlanFeatures) -> str:
    values = [[getattr(kernel, name) for name in _KERNEL_FIELDS] for kernel in features.kernels]
    kernels = [[dict(one) if isinstance(one, Mapping) else one for one in kernel] for kernel in values]
    data = {name: getattr(features, name) for name in ("launches", "aten_nodes", "scratch_bytes")}
    return dumps(data | {"fields": _KERNEL_FIELDS, "kernels": kernels})  # fields: so that a later version may add one


def decode_features(text: str) -> PlanFeatures:
    data = loads(text)
    kernels = []
    for values in data["kernels"]:
        named = dict(zip(data["fields"], values, strict=True))
        named["grid"] = tuple(named["grid"])
        kernels.append(KernelFeatures(**named))
    return PlanFeatures(data["launches"], data["aten_nodes"], tuple(kernels), data["scratch_bytes"])


def decode_strategy(name: str, family: str, region: str, parameters: str) -> Strategy:
    return Strategy(name, family, region, tuple((key, value) for key, value in loads(parameters)))


def plan_key(measurements: Sequence[Measurement]) -> str:
    """The same plans on the same cases are the same kernel, whatever its text: 16 hex digits, "" if nothing ran."""
    if not measurements:
        return ""
    return digest("\n".join(f"{m.case}\0{m.plan}" for m in measurements))[:16]


BASELINE_FAULT = "baseline fault"
"""Kind of an event: a baseline that could not be timed, with case, name and reason."""

EVALUATION = (
    "SELECT e.id, s.sha256, t.identity, e.purpose, e.environment, e.status, e.reason, e.score, e.knobs, e.checks,"
    " e.charged, e.measured, e.gpu_s, e.wall_s FROM evaluations e JOIN candidates c ON c.id = e.candidate"
    " JOIN sources s ON s.id = c.source JOIN runs r ON r.id = e.run JOIN tasks t ON t.id = r.task"
)
CALLS = (
    "SELECT model, tokens_in, tokens_out, tokens_cached, dollars, wall_s, COALESCE(r.error, c.error), messages"
    " FROM calls c LEFT JOIN call_remarks r USING (attempt, position) WHERE attempt = ? ORDER BY position"
)
COMPARED = "case_kind, against, ratio, low, high, pairs, verdict, claimed"
MEASUREMENT = (
    "SELECT m.case_name, p.hash, m.median_us, m.iqr_us, m.n, m.low_us, m.high_us, m.baselines_us, m.light_share,"
    " f.data, m.details, m.clock_mhz, m.power_w, m.drift FROM measurements m JOIN plans p ON p.id = m.plan"
    " LEFT JOIN features f ON f.id = m.features WHERE m.evaluation = ? ORDER BY m.position"
)


def fetch_source(connection: sqlite3.Connection, rowid: int) -> Source:
    language, text = connection.execute("SELECT language, text FROM sources WHERE id = ?", (rowid,)).fetchone()
    return Source(text, language)


def fetch_strategy(connection: sqlite3.Connection, rowid: int) -> Strategy:
    sql = "SELECT name, family, region, parameters FROM strategies WHERE id = ?"
    return decode_strategy(*connection.execute(sql, (rowid,)).fetchone())


def fetch_environment(connection: sqlite3.Connection, rowid: int) -> Environment:
    (row,) = fetch_dicts(connection, "SELECT * FROM environments WHERE id = ?", (rowid,))
    told: dict[str, Any] = {field.name: row[field.name] for field in fields(Environment)}
    told["fp_fusion"] = bool(told["fp_fusion"])
    return Environment(**told)


def fetch_ceilings(connection: sqlite3.Connection, environment_key: str) -> dict[str, float]:
    """By name, each as it was measured last."""
    sql = (
        "SELECT c.name, c.value FROM ceilings c JOIN environments n ON n.id = c.environment WHERE n.key = ?"
        " ORDER BY c.id"
    )
    return dict(connection.execute(sql, (environment_key,)))


def fetch_baselines(connection: sqlite3.Connection, environment: int | None) -> dict[str, dict[str, float]]:
    """µs by case and name, each as it was timed last; `environment`: a row of environments."""
    found: dict[str, dict[str, float]] = {}
    sql = "SELECT case_name, name, median_us FROM baselines WHERE environment = ? ORDER BY id"
    for case, name, median_us in connection.execute(sql, (environment,)):
        found.setdefault(case, {})[name] = median_us
    return found


def fetch_baseline_faults(connection: sqlite3.Connection, environment: int | None) -> dict[str, dict[str, str]]:
    """Why a baseline has no time, by case and name, as it was found last; not of those that have one by now."""
    sql = "SELECT e.data FROM events e JOIN runs r ON r.id = e.run WHERE e.kind = ? AND r.environment = ? ORDER BY e.id"
    found: dict[str, dict[str, str]] = {}
    for (data,) in connection.execute(sql, (BASELINE_FAULT, environment)):
        fault = loads(data)
        found.setdefault(fault["case"], {})[fault["name"]] = fault["reason"]
    timed = fetch_baselines(connection, environment)
    for case, faults in found.items():
        found[case] = {name: reason for name, reason in faults.items() if name not in timed.get(case, {})}
    return {case: faults for case, faults in found.items() if faults}


def fetch_evaluation(connection: sqlite3.Connection, number: int) -> Evaluation:
    row = connection.execute(f"{EVALUATION} WHERE e.id = ?", (number,)).fetchone()
    _, source, task, purpose, environment, status, reason, score, knobs, checks, charged, measured, gpu_s, wall_s = row
    measurements = [_measurement(found) for found in connection.execute(MEASUREMENT, (number,))]
    plans = _parts(connection, "source_plans", "knobs", number)
    return Evaluation(
        source=source,
        task=task,
        purpose=Purpose(purpose),
        environment=fetch_environment(connection, environment),
        status=Status(status),
        reason=reason,
        score=score,
        knobs=decode_knobs(knobs),
        checks=tuple(CheckResult(*check) for check in loads(checks)),
        measurements=tuple(measurements[:measured]),
        plans=tuple((case, decode_knobs(text), plan) for case, plan, text in plans),
        verdicts=_verdicts(connection, number, measurements),
        comparisons=tuple(
            PairedComparison(case, CaseKind(kind), Rival(against), plan, *rest)
            for case, plan, kind, against, *rest in _parts(connection, "comparisons", COMPARED, number)
        ),
        charged={Purpose(name): count for name, count in loads(charged).items()},
        gpu_s=gpu_s,
        wall_s=wall_s,
    )


def fetch_verdicts(connection: sqlite3.Connection, environment_key: str) -> Iterator[PlanVerdict]:
    """Everything found out about plans in one environment, oldest first: of candidates, then by agents alone."""
    numbers = connection.execute(
        "SELECT e.id FROM evaluations e JOIN environments n ON n.id = e.environment WHERE n.key = ?"
        " AND EXISTS (SELECT 1 FROM verdicts v WHERE v.evaluation = e.id) ORDER BY e.id",
        (environment_key,),
    )
    for (number,) in numbers:
        measurements = [_measurement(found) for found in connection.execute(MEASUREMENT, (number,))]
        yield from _verdicts(connection, number, measurements)
    rows = connection.execute(
        "SELECT f.case_name, f.plan, f.status, f.reason, f.check_result, f.measurement FROM findings f"
        " JOIN environments n ON n.id = f.environment WHERE n.key = ? ORDER BY f.id",
        (environment_key,),
    )
    for *row, text in rows:
        yield _verdict(row, decode_finding(text))


def decode_finding(text: str | None) -> Measurement | None:
    """The measurement of a row of findings."""
    if text is None:
        return None
    data = loads(text)
    features = data.pop("features", None)
    known = {name: value for name, value in data.items() if name in _FIELDS}
    return Measurement(**known, features=decode_features(features) if features is not None else None)


def fetch_decisions(
    connection: sqlite3.Connection, attempt: int, strategy: Callable[[int], Strategy] | None = None
) -> tuple[Decision, ...]:
    """Decisions of an attempt in their order; `strategy` looks one up by its row, for who keeps them at hand."""
    find = strategy or (lambda rowid: fetch_strategy(connection, rowid))
    rows = connection.execute(
        "SELECT policy, offered, probabilities, chosen, context FROM decisions WHERE attempt = ? ORDER BY position",
        (attempt,),
    )
    return tuple(
        Decision(policy, tuple(map(find, loads(offered))), tuple(loads(chances)), chosen, tuple(loads(context)))
        for policy, offered, chances, chosen, context in rows.fetchall()
    )


def fetch_parents(connection: sqlite3.Connection, attempt: int) -> tuple[tuple[str, int], ...]:
    sql = "SELECT role, candidate FROM parents WHERE attempt = ? ORDER BY position"
    return tuple(connection.execute(sql, (attempt,)).fetchall())


def fetch_proposal(connection: sqlite3.Connection, candidate: int) -> Proposal:
    """What an operator gave back, of a candidate that is durable."""
    sql = "SELECT attempt, source, operator, strategy, probes, wall_s, explicit_parents FROM candidates WHERE id = ?"
    attempt, source, operator, strategy, probes, wall_s, explicit = connection.execute(sql, (candidate,)).fetchone()
    steps = "SELECT action, outcome, detail, wall_s FROM steps WHERE attempt = ? ORDER BY position"
    return Proposal(
        source=fetch_source(connection, source),
        operator=operator,
        strategy=fetch_strategy(connection, strategy) if strategy else None,
        parents=fetch_parents(connection, attempt) if explicit else (),
        decisions=fetch_decisions(connection, attempt),
        steps=tuple(Step(*row) for row in connection.execute(steps, (attempt,))),
        calls=tuple(Call(*row) for row in connection.execute(CALLS, (attempt,))),
        probes=probes,
        wall_s=wall_s,
    )


def _measurement(row: Sequence[Any]) -> Measurement:
    case, plan, median_us, iqr_us, n, low_us, high_us, baselines_us, light_share, features, details, *clock = row
    return Measurement(
        case, plan, _nan(median_us), _nan(iqr_us), n, _nan(low_us), _nan(high_us), loads(baselines_us), light_share,
        decode_features(features) if features is not None else None, loads(details), *clock,
    )  # fmt: skip


def _parts(connection: sqlite3.Connection, table: str, columns: str, evaluation: int) -> sqlite3.Cursor:
    """Rows of an evaluation: case, hash of the plan, the columns."""
    sql = (
        f"SELECT t.case_name, p.hash, {columns} FROM {table} t JOIN plans p ON p.id = t.plan WHERE t.evaluation = ?"
        " ORDER BY t.position"
    )
    return connection.execute(sql, (evaluation,))


def _verdicts(
    connection: sqlite3.Connection, number: int, measurements: Sequence[Measurement]
) -> tuple[PlanVerdict, ...]:
    rows = _parts(connection, "verdicts", "status, reason, check_result, measurement", number)
    return tuple(_verdict(row, None if at is None else measurements[at]) for *row, at in rows)


def _verdict(row: Sequence[Any], measurement: Measurement | None) -> PlanVerdict:
    case, plan, status, reason, check = row
    checked = CheckResult(*loads(check)) if check is not None else None
    return PlanVerdict(case, plan, Status(status), reason, checked, measurement)


def _nan(value: float | None) -> float:
    """SQLite keeps NaN as NULL."""
    return math.nan if value is None else value


_FIELDS = tuple(field.name for field in fields(Measurement) if field.name != "features")


def write_findings(connection: sqlite3.Connection, environment: int, verdicts: Iterable[PlanVerdict]) -> None:
    """`environment`: a row of environments."""
    sql = "INSERT INTO findings (environment, case_name, plan, status, reason, check_result, measurement, at)"
    for one in verdicts:
        check, timed, data = one.check, one.measurement, None
        if timed is not None:
            data = {name: getattr(timed, name) for name in _FIELDS}
            data |= {"baselines_us": dict(timed.baselines_us), "details": dict(timed.details)}
            data["features"] = encode_features(timed.features) if timed.features is not None else None
        told = [dumps(value) if value is not None else None for value in (check and astuple(check), data)]
        row = (environment, one.case, one.plan, str(one.status), one.reason, *told, time.time())
        connection.execute(f"{sql} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
