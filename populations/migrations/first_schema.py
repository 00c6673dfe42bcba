"""The first schema: sessions, the lineage, the judge's verdicts."""

from __future__ import annotations

from typing import Any

from sqlite_utils import Database

OPTIONAL = {
    "attempts.parent",  # a seed has none
    "steps.detail",
    "calls.dollars",  # the price is not known
    "calls.error",
    "calls.messages",
    "candidates.strategy",
    "candidates.parent",
    "notes.attempt",
    "events.attempt",
    "evaluations.score",
    "evaluations.log_us",
    "evaluations.light_share",
    "measurements.median_us",  # SQLite keeps NaN as NULL
    "measurements.iqr_us",
    "measurements.low_us",
    "measurements.high_us",
    "measurements.light_share",
    "measurements.features",
    "verdicts.check_result",
    "verdicts.measurement",
    "failures.strategy",
}
"""Columns that may be NULL; all others may not."""

Key = str | tuple[str, ...]
Links = list[tuple[str, str, str]]

TABLES: list[tuple[str, dict[str, Any], Key, Links]] = [
    ("tasks", {"id": int, "identity": str, "name": str, "card": str}, "id", []),
    (
        "environments",
        {"id": int, "key": str, "kind": str, "device": str, "driver": str, "torch": str, "triton": str}
        | {"fp_fusion": int, "judge": int, "confinement": str},
        "id",
        [],
    ),
    (
        "runs",  # one row a session: what was opened, by whom, from which evaluation on
        {"id": int, "task": int, "environment": int, "seed": int, "settings": str, "config": str, "pid": int}
        | {"host": str, "after_evaluation": int, "after_attempt": int, "at": float},
        "id",
        [("task", "tasks", "id"), ("environment", "environments", "id")],
    ),
    ("sources", {"id": int, "sha256": str, "language": str, "text": str}, "id", []),
    (
        "strategies",
        {"id": int, "key": str, "name": str, "family": str, "region": str, "parameters": str},
        "id",
        [],
    ),
    (
        "attempts",  # inspirations: JSON list of candidates
        {"id": int, "run": int, "parent": int, "island": int, "selector": str, "inspirations": str, "at": float},
        "id",
        [("run", "runs", "id")],
    ),
    (
        "candidates",
        {"id": int, "attempt": int, "source": int, "operator": str, "strategy": int, "parent": int, "island": int}
        | {"generation": int, "probes": int, "wall_s": float, "explicit_parents": int, "at": float},
        "id",
        [
            ("attempt", "attempts", "id"),
            ("source", "sources", "id"),
            ("strategy", "strategies", "id"),
            ("parent", "candidates", "id"),
        ],
    ),
    (
        "parents",
        {"attempt": int, "position": int, "candidate": int, "role": str},
        ("attempt", "position"),
        [("attempt", "attempts", "id"), ("candidate", "candidates", "id")],
    ),
    (
        "decisions",  # offered: JSON list of strategies' ids; probabilities and context: JSON lists of numbers
        {"attempt": int, "position": int, "policy": str, "offered": str, "probabilities": str, "chosen": int}
        | {"context": str},
        ("attempt", "position"),
        [("attempt", "attempts", "id")],
    ),
    (
        "steps",
        {"attempt": int, "position": int, "action": str, "outcome": str, "detail": str, "wall_s": float},
        ("attempt", "position"),
        [("attempt", "attempts", "id")],
    ),
    (
        "calls",
        {"attempt": int, "position": int, "model": str, "tokens_in": int, "tokens_out": int, "tokens_cached": int}
        | {"dollars": float, "wall_s": float, "error": str, "messages": str},
        ("attempt", "position"),
        [("attempt", "attempts", "id")],
    ),
    (
        "failures",  # an attempt that ended without a candidate
        {"attempt": int, "operator": str, "reason": str, "parent": int, "strategy": int, "probes": int}
        | {"wall_s": float, "at": float},
        "attempt",
        [("attempt", "attempts", "id"), ("parent", "candidates", "id"), ("strategy", "strategies", "id")],
    ),
    (
        "notes",
        {"id": int, "attempt": int, "author": str, "text": str, "at": float},
        "id",
        [("attempt", "attempts", "id")],
    ),
    ("plans", {"id": int, "hash": str}, "id", []),
    ("features", {"id": int, "digest": str, "data": str}, "id", []),
    (
        "evaluations",  # the columns up to `witnessed` are what the search state is rebuilt from
        {"id": int, "run": int, "candidate": int, "environment": int, "purpose": str, "status": str, "score": float}
        | {"log_us": float, "log_variance": float, "light_share": float, "cell": str, "plan_key": str}
        | {"cost": float, "fresh": int, "witnessed": int, "reason": str, "knobs": str, "checks": str}
        | {"charged": str, "measured": int, "gpu_s": float, "wall_s": float, "at": float},
        "id",
        [("run", "runs", "id"), ("candidate", "candidates", "id"), ("environment", "environments", "id")],
    ),
    (
        "measurements",  # the first `measured` are the evaluation's own, the others belong to verdicts only
        {"evaluation": int, "position": int, "plan": int, "case_name": str, "median_us": float, "iqr_us": float}
        | {"n": int, "low_us": float, "high_us": float, "baselines_us": str, "light_share": float}
        | {"features": int, "details": str},
        ("evaluation", "position"),
        [("evaluation", "evaluations", "id"), ("plan", "plans", "id"), ("features", "features", "id")],
    ),
    (
        "verdicts",  # what was newly found out about plans; `measurement`: a position in measurements
        {"evaluation": int, "position": int, "plan": int, "case_name": str, "status": str, "reason": str}
        | {"check_result": str, "measurement": int},
        ("evaluation", "position"),
        [("evaluation", "evaluations", "id"), ("plan", "plans", "id")],
    ),
    (
        "source_plans",  # every plan that an evaluation saw of a source; `target`: the environment's device
        {"evaluation": int, "position": int, "source": int, "case_name": str, "knobs": str, "target": str}
        | {"plan": int},
        ("evaluation", "position"),
        [("evaluation", "evaluations", "id"), ("source", "sources", "id"), ("plan", "plans", "id")],
    ),
    (
        "placements",  # a candidate became the elite of a cell of an island's archive
        {"seq": int, "evaluation": int, "candidate": int, "island": int, "cell": str},
        "seq",
        [("evaluation", "evaluations", "id"), ("candidate", "candidates", "id")],
    ),
    (
        "ceilings",  # what this machine can do at most, e.g. ("copy", 4.26e12 bytes/s)
        {"id": int, "environment": int, "name": str, "value": float, "unit": str, "at": float},
        "id",
        [("environment", "environments", "id")],
    ),
    (
        "baselines",
        {"id": int, "environment": int, "case_name": str, "name": str, "median_us": float, "at": float},
        "id",
        [("environment", "environments", "id")],
    ),
    (
        "events",
        {"id": int, "run": int, "kind": str, "data": str, "at": float},
        "id",
        [("run", "runs", "id")],
    ),
]

UNIQUE = {"tasks": "identity", "environments": "key", "sources": "sha256", "strategies": "key"}
UNIQUE |= {"plans": "hash", "features": "digest"}


def apply(database: Database) -> None:
    for name, columns, key, links in TABLES:
        not_null = {column for column in columns if f"{name}.{column}" not in OPTIONAL}
        database.table(name).create(columns, pk=key, foreign_keys=links, not_null=not_null)
    # Attempts and candidates point at each other, so one of the two links comes when both tables exist.
    database.table("attempts").add_foreign_key("parent", "candidates", "id")
    for name, column in UNIQUE.items():
        database.table(name).create_index([column], unique=True)
