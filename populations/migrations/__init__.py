"""The schema, as a list of migrations: each one atomic, applied once, in order. Never edit one that was released.

Every table is insert-only, no row has a status that changes: what is open, pending or judged is derived from which
rows exist. Ids are integers that only grow, so the order of ids is the order of what happened. Kernel times are
microseconds (`_us`), all other times seconds (`_s`, or `at`: Unix time).
"""

from __future__ import annotations

from sqlite_utils import Database, Migrations

from populations.migrations import (
    m0001_lineage,
    m0002_lookups,
    m0003_clock,
    m0004_comparisons,
    m0005_agents,
    m0006_remarks,
    m0007_tickets,
    m0008_views,
    m0009_assembler,
)

migrations = Migrations("populations")
migrations(name="0001_lineage")(m0001_lineage.apply)
migrations(name="0002_lookups")(m0002_lookups.apply)
migrations(name="0003_clock")(m0003_clock.apply)
migrations(name="0004_comparisons")(m0004_comparisons.apply)
migrations(name="0005_agents")(m0005_agents.apply)
migrations(name="0006_remarks")(m0006_remarks.apply)
migrations(name="0007_tickets")(m0007_tickets.apply)
migrations(name="0008_views")(m0008_views.apply)
migrations(name="0009_assembler")(m0009_assembler.apply)


def migrate(database: Database) -> None:
    """Bring a file, new or old, to the present schema."""
    migrations.apply(database)
