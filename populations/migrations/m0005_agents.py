"""What agents leave behind: their conversations turn by turn, what they learnt, and what a note rests on."""

from __future__ import annotations

from typing import Any

from sqlite_utils import Database

TURNS: dict[str, Any] = {
    "attempt": int,
    "position": int,
    "kind": str,
    "data": bytes,  # JSON, deflated
    "calls": int,  # of language models, by the end of this turn, in the whole attempt
    "charged": str,  # JSON: evaluations by purpose
    "gpu_s": float,
    "at": float,
}
MEMORIES: dict[str, Any] = {"id": int, "attempt": int, "kind": str, "data": str, "at": float}


def apply(database: Database) -> None:
    links = [("attempt", "attempts", "id")]
    database.table("turns").create(TURNS, pk=("attempt", "position"), foreign_keys=links, not_null=set(TURNS))
    database.table("turns").create_index(["at"])
    database.table("memories").create(MEMORIES, pk="id", foreign_keys=links, not_null=set(MEMORIES))
    database.table("memories").create_index(["attempt", "kind"], unique=True)
    notes = database.table("notes")
    notes.add_column("evidence", str)  # JSON list; NULL: a note of no agent
    notes.add_column("refutes", int)  # the older note that this one says does not hold
