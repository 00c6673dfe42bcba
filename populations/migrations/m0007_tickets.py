"""Tickets in the hands of somebody outside: such an attempt stays open when the process that opened it is gone."""

from __future__ import annotations

from typing import Any

from sqlite_utils import Database

COLUMNS: dict[str, Any] = {
    "attempt": int,
    "holder": str,  # who asked, as they call themselves
    "expires_at": float,  # Unix time; NULL: never
    "at": float,
}


def apply(database: Database) -> None:
    database.table("tickets").create(
        COLUMNS,
        pk="attempt",
        foreign_keys=[("attempt", "attempts", "id")],
        not_null=set(COLUMNS) - {"expires_at"},
    )
