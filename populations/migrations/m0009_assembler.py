"""Which version of the assembler made the code that was judged."""

from __future__ import annotations

from sqlite_utils import Database


def apply(database: Database) -> None:
    database.table("environments").add_column("assembler", str, not_null_default="")  # "" where it was not told
