"""Tickets of external processes: one is good until it is told, given up, or expires, however many processes have
opened and closed the file since.

What became of one is derived, like all else: from whether its attempt has a candidate or a failure, and the clock.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import asdict, dataclass
from typing import Any

from evo_kernel.errors import PopulationError

TICKETS = (
    "SELECT t.attempt, t.holder, a.parent, t.at, t.expires_at, c.id, f.reason FROM tickets t"
    " JOIN attempts a ON a.id = t.attempt LEFT JOIN candidates c ON c.attempt = t.attempt"
    " LEFT JOIN failures f ON f.attempt = t.attempt"
)


@dataclass(frozen=True)
class HandedOut:
    """An attempt that was asked for from outside."""

    attempt: int
    holder: str
    parent: int
    at: float  # Unix time
    expires_at: float | None  # Unix time; None: never
    candidate: int | None = None  # what was told for it
    failure: str | None = None  # why it was given up

    def state(self, now: float) -> str:
        """open, told, given up or expired."""
        if self.candidate is not None:
            return "told"
        if self.failure is not None:
            return "given up"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "open"

    def check(self, now: float) -> None:
        """Raises PopulationError when nothing can be told for it any more."""
        state = self.state(now)
        if state == "given up":
            raise PopulationError(f"attempt {self.attempt} was given up ({self.failure}). Ask for another one.")
        if state == "expired":
            raise PopulationError(
                f"the ticket of attempt {self.attempt} has expired. Ask for a new one, and tell it the same file."
            )

    def as_data(self, now: float) -> dict[str, Any]:
        return {**asdict(self), "state": self.state(now)}


def fetch_ticket(connection: sqlite3.Connection, attempt: int) -> HandedOut:
    """Raises PopulationError when this attempt was never asked for from outside."""
    found = _tickets(connection, "WHERE t.attempt = ?", (attempt,))
    if found:
        return found[0]
    still = ", ".join(str(one.attempt) for one in open_tickets(connection)) or "none"
    raise PopulationError(
        f"attempt {attempt} was not handed out by `evo-kernel ask`. Open tickets: {still}. "
        "Ask for one, and tell its number."
    )


def open_tickets(connection: sqlite3.Connection) -> list[HandedOut]:
    """Those that may still be told, oldest first."""
    where = "WHERE c.id IS NULL AND f.attempt IS NULL AND (t.expires_at IS NULL OR t.expires_at > ?)"
    return _tickets(connection, where, (time.time(),))


def _tickets(connection: sqlite3.Connection, where: str, parameters: tuple[Any, ...]) -> list[HandedOut]:
    rows = connection.execute(f"{TICKETS} {where} ORDER BY t.attempt", parameters)
    return [HandedOut(*row) for row in rows]
