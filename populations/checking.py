"""Checks the rows of a population before anybody reads them: such a file may come from anywhere, edited by hand.

Each row must be what a search writes: numbers in range, names that are known, links to rows that exist, JSON of its
shape, and a score that follows from its times. What may be in a file beside rows: `schema.py`.
"""

from __future__ import annotations

import math
import sqlite3
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NewType

from evo_kernel.errors import PopulationError
from evo_kernel.types import CaseKind, Measurement, PlanFeatures, Purpose, Rival, Source, Status, TaskCard
from evo_kernel.types.limits import MOST_COUNT, MOST_NUMBER
from evo_kernel.types.notes import Evidence
from populations.archive import PopulationSettings
from populations.connect import limited, owner
from populations.rows import BASELINE_FAULT, decode_features, decode_finding, digest, dumps, fetch_environment, loads
from populations.statistics import NO_PROPOSAL

Count, Positive = NewType("Count", int), NewType("Positive", float)
Error = NewType("Error", float)
"""Of an output, which may be infinite."""
Fault = tuple[str, int, str]
"""(table, row, what is wrong)."""
CHECK, KNOBS, CHARGED = tuple[str, bool, Error, str], list[tuple[str, int]], dict[Purpose, Count]

SHAPES: Mapping[str, Any] = {
    "tasks.card": Mapping[str, Any],
    "runs.settings": Mapping[str, Any],
    "runs.config": Mapping[str, Any],
    "strategies.parameters": list[tuple[str, str | int]],
    "attempts.inspirations": list[Count],
    "decisions.offered": list[Count],
    "decisions.probabilities": list[float],
    "decisions.context": list[float],
    "evaluations.knobs": KNOBS,
    "evaluations.checks": list[CHECK],
    "evaluations.charged": CHARGED,
    "measurements.baselines_us": dict[str, Positive],
    "measurements.details": dict[str, float],
    "verdicts.check_result": CHECK,
    "source_plans.knobs": KNOBS,
    "events.data": Mapping[str, Any],
    "turns.charged": CHARGED,
    "memories.data": Mapping[str, Any],
    "notes.evidence": list[Evidence],
    "findings.check_result": CHECK,
}
"""JSON by its column."""
MADE: Mapping[str, tuple[str, Callable[..., Any], Any]] = {
    "tasks": ("card", lambda text: TaskCard.from_data(loads(text)), TaskCard),
    "runs": ("settings", lambda text: PopulationSettings.from_data(loads(text)), PopulationSettings),
    "features": ("data", decode_features, PlanFeatures),
    "findings": ("measurement", decode_finding, Measurement | None),
}
"""Values of few rows, which are made here as they are made later, by table: column, how, what must come of it."""


def _one_of(column: str, names: type[Enum]) -> str:
    return f"{column} IN ({', '.join(repr(str(name)) for name in names)})"


_TIMES = "FROM measurements m WHERE m.evaluation = t.id AND m.position < t.measured"
_ALL = "(SELECT COUNT(*) FROM candidates)"
RULES = (
    ("environments", "fp_fusion IN (0, 1) AND kind IN ('measured', 'modeled')", "its kind is not known"),
    ("environments", "key = environment_key(id)", "its key does not follow from what it says of the judge"),
    ("sources", "sha256 = source_hash(text, language)", "its text is not the one of its hash"),
    ("features", "digest = hash(data)", "its data is not the one of its hash"),
    ("runs", "after_evaluation = (SELECT IFNULL(MAX(id), 0) FROM evaluations WHERE run < t.id)", "it begins elsewhere"),
    ("candidates", "id <= " + _ALL + " AND IFNULL(parent < id, TRUE)", "it is not numbered in order of birth"),
    ("attempts", f"NOT EXISTS (SELECT 1 FROM json_each(inspirations) WHERE value NOT BETWEEN 1 AND {_ALL})",
     "no candidate has such a number"),
    ("decisions", "chosen < json_array_length(offered) AND NOT EXISTS (SELECT 1 FROM json_each(offered) WHERE value"
     " NOT IN (SELECT id FROM strategies))", "no such strategy was offered"),
    ("evaluations", f"{_one_of('status', Status)} AND {_one_of('purpose', Purpose)}", "status or purpose is unknown"),
    ("evaluations", "(status = 'passed' OR reason != '' AND score IS NULL AND log_us IS NULL) AND fresh IN (0, 1) AND"
     " witnessed IN (0, 1)", "only what passed has a score, and all else a reason"),
    ("evaluations", f"measured = (SELECT COUNT(*) {_TIMES})", "it has not as many times as it says"),
    ("evaluations", f"status != 'passed' OR IIF(measured, near(log_us, (SELECT AVG(ln(median_us)) {_TIMES})),"
     " score IS NULL AND log_us IS NULL OR near(log_us, -ln(score)))", "its log_us does not follow from its times"),
    ("evaluations", "score IS NULL OR measured = 0 OR near(ln(score), (SELECT AVG(ln((SELECT MIN(value) FROM"
     f" json_each(baselines_us)) / median_us)) {_TIMES} ))", "its score does not follow from its times"),
    ("measurements", "median_us > 0 AND low_us > 0 AND high_us > 0 AND iqr_us >= 0", "a time is finite and positive"),
    ("verdicts", _one_of("status", Status), "its status is unknown"),
    ("verdicts", "measurement IS NULL OR EXISTS (SELECT 1 FROM measurements m WHERE m.evaluation = t.evaluation AND"
     " m.position = t.measurement)", "its times are missing"),
    ("findings", _one_of("status", Status), "its status is unknown"),
    ("comparisons", f"{_one_of('case_kind', CaseKind)} AND {_one_of('against', Rival)}", "its kind is unknown"),
    ("comparisons", "min(ratio, low, high, IFNULL(claimed, 1)) > 0", "a ratio is finite and positive"),
    ("baselines", "median_us > 0", "a time is finite and positive"),
    ("events", f"kind != '{NO_PROPOSAL}' OR json_type(data, '$.count') IS 'integer'", "it counts nothing"),
    ("events", f"kind != '{BASELINE_FAULT}' OR json_type(data, '$.case') || json_type(data, '$.name') ||"
     " json_type(data, '$.reason') IS 'texttexttext'", "it names no baseline"),
)  # fmt: skip
"""(table, what holds for each of its rows, what to say where it does not). `t`: the table."""

CLOSE = 1e-6
"""Allowed difference of logarithms between what is stored and what follows."""
SIGNED = ("log_us", "drift", "expires_at")
LATEST_S = 253402300800  # Unix time: the year 10000, which calendars do not have
KINDS = {
    "INTEGER": "typeof({0}) = 'integer' AND {0} BETWEEN 0 AND {1}",
    "TEXT": "typeof({0}) = 'text' AND legible(CAST({0} AS BLOB))",
    "BLOB": "typeof({0}) = 'blob'",
    "REAL": "typeof({0}) IN ('real', 'integer') AND {0} BETWEEN {2} AND {1}",
}
KINDS["FLOAT"] = KINDS["REAL"]
_checked: set[tuple[int, ...]] = set()


def check_rows(connection: sqlite3.Connection, path: Path, limit_s: float | None = None) -> None:
    """Raises PopulationError, which names table and row, for the first that is not what a search writes.

    Once a process and file: 60,000 candidates take three seconds. Again after a change, unless the lock's holder made
    it.
    """
    version = _version(path, bool(owner(path)))
    if version in _checked:
        return
    try:
        found = limited(connection, path, lambda: _first_fault(connection), limit_s)
    except sqlite3.DatabaseError as error:
        raise PopulationError(f"{path} is no whole population ({error}). Take another copy of it.") from error
    if found is not None:
        table, row, said = found
        raise PopulationError(
            f"{path}: row {row} of {table}: {said}. No search wrote that: the file was edited, or is damaged. Take "
            "another copy of it."
        )
    _checked.add(version)


def trust_rows(path: Path) -> None:
    """Its rows are checked, or were written by this process."""
    _checked.add(_version(path, held=False))


def _version(path: Path, held: bool) -> tuple[int, ...]:
    about = path.stat()
    return (about.st_dev, about.st_ino, *(() if held else (about.st_size, about.st_ctime_ns)))


def _first_fault(connection: sqlite3.Connection) -> Fault | None:
    connection.execute("BEGIN")  # one moment for all tables: somebody may be writing
    try:
        return next(_faults(connection), None)
    finally:
        connection.execute("ROLLBACK")


def _faults(connection: sqlite3.Connection) -> Iterator[Fault]:
    """Columns first: what comes after may rely on them."""
    for name, count, function in (
        ("ln", 1, _log), ("hash", 1, digest), ("fits", 2, _json_fits), ("near", 2, _near), ("legible", 1, _legible),
        ("whole", 1, _whole),
        ("source_hash", 2, lambda text, language: Source(text, language).sha256),
    ):  # fmt: skip
        connection.create_function(name, count, function, deterministic=True)
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    for (table,) in connection.execute(tables).fetchall():
        about = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
        rules = {name: _column(table, name, kind, bool(needed or key)) for _, name, kind, needed, _, key in about}
        if any(_broken(connection, table, " AND ".join(f"({rule})" for rule in rules.values()), "")):  # one scan
            for column, rule in rules.items():
                yield from _broken(connection, table, rule, f"its {column} is not what it should be")
    for table, row, other, _ in connection.execute("PRAGMA foreign_key_check"):
        yield table, row, f"it belongs to a row of {other} that does not exist"
    rows = connection.execute("SELECT id FROM environments").fetchall()
    keys = {row: fetch_environment(connection, row).key for (row,) in rows}
    connection.create_function("environment_key", 1, keys.get)
    for table, rule, said in RULES:
        yield from _broken(connection, table, rule, said)
    for table, (column, make, hint) in MADE.items():
        for row, text in connection.execute(f"SELECT rowid, {column} FROM {table}"):
            try:
                fit = _fits(make(text), hint)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                fit = False
            if not fit:
                yield table, row, f"its {column} is not of the known shape"


def _broken(connection: sqlite3.Connection, table: str, rule: str, said: str) -> Iterator[Fault]:
    for (row,) in connection.execute(f'SELECT rowid FROM "{table}" t WHERE ({rule}) IS NOT TRUE LIMIT 1'):
        yield table, row, said


def _column(table: str, column: str, kind: str, needed: bool) -> str:
    """What holds for each value of a column, as SQL."""
    most = 2**63 - 1 if column == "seed" else MOST_COUNT if kind == "INTEGER" else MOST_NUMBER
    most = LATEST_S if column in ("at", "expires_at") else most
    rule = KINDS.get(kind, "FALSE").format(f'"{column}"', most, -MOST_NUMBER if column in SIGNED else 0)
    shape = f"{table}.{column}"
    if shape in SHAPES:
        rule += f" AND fits('{shape}', {column})"
    if shape in SHAPES or MADE.get(table, ("",))[0] == column:
        rule += f" AND whole({column})"
    return rule if needed else f'"{column}" IS NULL OR {rule}'


def _legible(text: bytes) -> bool:
    try:
        return text.decode() is not None
    except UnicodeDecodeError:
        return False


def _whole(text: str) -> bool:
    """Whether JSON has no half of a surrogate pair, which no page takes; escaped, it is legible."""
    try:
        return "\\ud" not in text.lower() or dumps(loads(text)).encode() is not None
    except (ValueError, RecursionError):
        return False


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and value > 0 else None


def _near(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) <= CLOSE * max(1.0, abs(one))


@lru_cache(4096)
def _json_fits(shape: str, text: str) -> bool:
    try:
        return _fits(loads(text), SHAPES[shape])
    except (ValueError, RecursionError):
        return False


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, all the way down; of JSON too, which has lists for tuples."""
    args = typing.get_args(hint)
    match typing.get_origin(hint) or hint:
        case typing.Any:
            return True
        case kind if kind is int or kind is Count:
            least, most = (0, MOST_COUNT) if kind is Count else (-(2**63), 2**63 - 1)
            return type(value) is int and least <= value <= most
        case typing.Union | types.UnionType:
            return any(_fits(value, one) for one in args)
        case origin if origin is tuple and args[-1] is not ...:
            return isinstance(value, list | tuple) and len(value) == len(args) and all(map(_fits, value, args))
        case origin if origin in (tuple, list):
            if args[0] is float and isinstance(value, list):  # thousands of them: the offers of policies
                return {*map(type, value)} <= {float, int} and math.isfinite(sum(value))
            return isinstance(value, list | tuple) and all(_fits(one, args[0]) for one in value)
        case origin if isinstance(origin, type) and issubclass(origin, Mapping):
            return isinstance(value, dict) and all(_fits(k, args[0]) and _fits(v, args[1]) for k, v in value.items())
        case kind if is_dataclass(kind):
            of = value.get if isinstance(value, dict) else lambda name: getattr(value, name, None)
            return all(_fits(of(name), one) for name, one in _hints(kind).items())
        case kind if isinstance(kind, type) and issubclass(kind, Enum):
            return isinstance(value, str) and value in [str(one) for one in kind]
        case typing.Literal:
            return value in args
    if hint in (float, Error, Positive):
        known = isinstance(value, float | int) and not isinstance(value, bool) and abs(value) <= MOST_NUMBER
        return value > 0 if known and hint is Positive else known or (hint is Error and isinstance(value, float))
    return type(value) is hint


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)
