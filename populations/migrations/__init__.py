"""The schema, as a list of migrations: each one atomic, applied once, in order. Never edit one that was released.

Every table is insert-only, no row has a status that changes: what is open, pending or judged is derived from which
rows exist. Ids are integers that only grow, so the order of ids is the order of what happened. Kernel times are
microseconds (`_us`), all other times seconds (`_s`, or `at`: Unix time).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from sqlite_utils import Database, Migrations

from populations.migrations import first_schema, views

ATTEMPT = [("attempt", "attempts", "id")]

migrations = Migrations("populations")
migrations(name="0001_lineage")(first_schema.apply)


@migrations(name="0002_lookups")
def lookups(database: Database) -> None:
    """Indexes for what is looked up while the search runs: a candidate's verdicts, what failed on a parent."""
    database.table("evaluations").create_index(["candidate", "id"])
    database.table("candidates").create_index(["attempt"], unique=True)
    database.table("candidates").create_index(["parent"])
    database.table("failures").create_index(["parent"])
    database.table("verdicts").create_index(["plan"])


@migrations(name="0003_clock")
def clock(database: Database) -> None:
    """The card's state beside a measurement; NULL in old files, and for modeled times."""
    for name in ("clock_mhz", "power_w", "drift"):
        database.table("measurements").add_column(name, float)


@migrations(name="0004_comparisons")
def comparisons(database: Database) -> None:
    """What a confirmation measured side by side: the candidate and its rivals, case by case."""
    columns = {"evaluation": int, "position": int, "plan": int, "case_name": str, "case_kind": str, "against": str}
    columns |= {"ratio": float, "low": float, "high": float}  # rival ÷ candidate; `plan`: the rival's
    columns |= {"pairs": int, "verdict": str, "claimed": float}  # claimed: NULL where the search had claimed nothing
    links = [("evaluation", "evaluations", "id"), ("plan", "plans", "id")]
    _create(database, "comparisons", columns, ("evaluation", "position"), links, {"claimed"})


@migrations(name="0005_agents")
def agents(database: Database) -> None:
    """What agents leave behind: conversations turn by turn, what they learnt, findings about plans, notes' evidence."""
    turns = {"attempt": int, "position": int, "kind": str, "data": bytes}  # data: JSON, deflated
    turns |= {"calls": int}  # of language models, by the end of this turn, in the whole attempt
    turns |= {"charged": str, "gpu_s": float, "at": float}  # charged: JSON, evaluations by purpose
    _create(database, "turns", turns, ("attempt", "position"), ATTEMPT)
    database.table("turns").create_index(["at"])
    memories = {"id": int, "attempt": int, "kind": str, "data": str, "at": float}
    _create(database, "memories", memories, "id", ATTEMPT)
    database.table("memories").create_index(["attempt", "kind"], unique=True)
    findings = {"id": int, "environment": int, "case_name": str, "plan": str, "status": str, "reason": str}
    findings |= {"check_result": str, "measurement": str, "at": float}
    links = [("environment", "environments", "id")]
    _create(database, "findings", findings, "id", links, {"check_result", "measurement"})
    database.table("notes").add_column("evidence", str)  # JSON list; NULL: a note of no agent
    database.table("notes").add_column("refutes", int)  # the older note that this one says does not hold


@migrations(name="0006_remarks")
def remarks(database: Database) -> None:
    """What an operator found wrong with the answer of a call whose row was written when the call was made."""
    columns = {"attempt": int, "position": int, "error": str}
    _create(database, "call_remarks", columns, ("attempt", "position"), ATTEMPT)


@migrations(name="0007_tickets")
def tickets(database: Database) -> None:
    """Tickets in the hands of somebody outside: such an attempt stays open when the process that opened it is gone."""
    columns = {"attempt": int, "holder": str, "expires_at": float, "at": float}  # expires_at: NULL is never
    _create(database, "tickets", columns, "attempt", ATTEMPT, {"expires_at"})


@migrations(name="0008_views")
def plain_views(database: Database) -> None:
    for name, sql in views.VIEWS.items():
        database.create_view(name, sql.strip())


@migrations(name="0009_assembler")
def assembler(database: Database) -> None:
    """Which version of the assembler made the code that was judged; "" where it was not told."""
    database.table("environments").add_column("assembler", str, not_null_default="")


def _create(
    database: Database,
    name: str,
    columns: dict[str, Any],
    key: str | tuple[str, ...],
    links: list[tuple[str, str, str]],
    optional: Set[str] = frozenset(),
) -> None:
    database.table(name).create(columns, pk=key, foreign_keys=links, not_null=set(columns) - optional)


def migrate(database: Database) -> None:
    """Bring a file, new or old, to the present schema."""
    migrations.apply(database)
