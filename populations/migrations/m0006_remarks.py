"""What an operator found wrong with the answer of a call whose row was written when the call was made."""

from __future__ import annotations

from typing import Any

from sqlite_utils import Database

COLUMNS: dict[str, Any] = {"attempt": int, "position": int, "error": str}


def apply(database: Database) -> None:
    database.table("call_remarks").create(
        COLUMNS, pk=("attempt", "position"), foreign_keys=[("attempt", "attempts", "id")], not_null=set(COLUMNS)
    )
