"""What the clock saw beside a measurement: the card's state, and how far the machine had drifted."""

from __future__ import annotations

from sqlite_utils import Database

COLUMNS = ("clock_mhz", "power_w", "drift")


def apply(database: Database) -> None:
    table = database.table("measurements")
    for name in COLUMNS:
        table.add_column(name, float)  # NULL where it is not known: in old files, and for modeled times
