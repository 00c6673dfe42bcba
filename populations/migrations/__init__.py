"""The schema, as a list of migrations: each one atomic, applied once, in order. Never edit one that was released.

Every table is insert-only, no row has a status that changes: what is open, pending or judged is derived from which
rows exist. Ids are integers that only grow, so the order of ids is the order of what happened. Kernel times are
microseconds (`_us`), all other times seconds (`_s`, or `at`: Unix time).
"""

from __future__ import annotations

from sqlite_utils import Database, Migrations

from populations.migrations import first_schema, views

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
    first_schema.create(
        database,
        "comparisons",  # `plan`: the rival's; ratios are rival ÷ candidate; claimed: NULL where nothing was claimed
        """evaluation int > evaluations *, position int *, plan int > plans, case_name str, case_kind str, against str,
        ratio float, low float, high float, pairs int, verdict str, claimed float?""",
    )


@migrations(name="0005_agents")
def agents(database: Database) -> None:
    """What agents leave behind: conversations turn by turn, what they learnt, findings about plans, notes' evidence."""
    first_schema.create(
        database,
        "turns",  # data: JSON, deflated; calls: in the whole attempt so far; charged: JSON, evaluations by purpose
        """attempt int > attempts *, position int *, kind str, data bytes, calls int, charged str, gpu_s float,
        at float""",
    )
    database.table("turns").create_index(["at"])
    first_schema.create(database, "memories", "id int, attempt int > attempts, kind str, data str, at float")
    database.table("memories").create_index(["attempt", "kind"], unique=True)
    first_schema.create(
        database,
        "findings",
        """id int, environment int > environments, case_name str, plan str, status str, reason str, check_result str?,
        measurement str?, at float""",
    )
    database.table("notes").add_column("evidence", str)  # JSON list; NULL: a note of no agent
    database.table("notes").add_column("refutes", int)  # the older note that this one says does not hold


@migrations(name="0006_remarks")
def remarks(database: Database) -> None:
    """What an operator found wrong with the answer of a call whose row was written when the call was made."""
    first_schema.create(database, "call_remarks", "attempt int > attempts *, position int *, error str")


@migrations(name="0007_tickets")
def tickets(database: Database) -> None:
    """Tickets in the hands of somebody outside: such an attempt stays open when the process that opened it is gone."""
    first_schema.create(database, "tickets", "attempt int > attempts *, holder str, expires_at float?, at float")


@migrations(name="0008_views")
def plain_views(database: Database) -> None:
    for name, sql in views.VIEWS.items():
        database.create_view(name, sql.strip())


@migrations(name="0009_assembler")
def assembler(database: Database) -> None:
    """Which version of the assembler made the code that was judged; "" where it was not told."""
    database.table("environments").add_column("assembler", str, not_null_default="")


@migrations(name="0010_views")
def views_anew(database: Database) -> None:
    """Views tell the row of the environment: two may have one label."""
    for name, sql in views.VIEWS.items():
        database.create_view(name, sql.strip(), replace=True)


def migrate(database: Database) -> None:
    """Bring a file, new or old, to the present schema."""
    migrations.apply(database)
