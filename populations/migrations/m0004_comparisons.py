"""What a confirmation measured side by side: the candidate and its rivals, case by case."""

from __future__ import annotations

from typing import Any

from sqlite_utils import Database

COLUMNS: dict[str, Any] = {
    "evaluation": int,
    "position": int,
    "plan": int,  # the rival's
    "case_name": str,
    "case_kind": str,
    "against": str,
    "ratio": float,  # rival ÷ candidate
    "low": float,
    "high": float,
    "pairs": int,
    "verdict": str,
    "claimed": float,  # NULL where the search had claimed nothing
}


def apply(database: Database) -> None:
    database.table("comparisons").create(
        COLUMNS,
        pk=("evaluation", "position"),
        foreign_keys=[("evaluation", "evaluations", "id"), ("plan", "plans", "id")],
        not_null=set(COLUMNS) - {"claimed"},
    )
