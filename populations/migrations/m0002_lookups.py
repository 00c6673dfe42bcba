"""Indexes for what is looked up while the search runs: a candidate's verdicts, what failed on a parent."""

from __future__ import annotations

from sqlite_utils import Database


def apply(database: Database) -> None:
    database.table("evaluations").create_index(["candidate", "id"])
    database.table("candidates").create_index(["attempt"], unique=True)
    database.table("candidates").create_index(["parent"])
    database.table("failures").create_index(["parent"])
    database.table("verdicts").create_index(["plan"])
