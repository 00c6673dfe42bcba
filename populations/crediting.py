"""From what the ledger paid (credit.py) to credits with names: operator, strategy, decision."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from evo_kernel.types import Credit, Decision, Strategy
from populations.candidate_cache import Library
from populations.credit import Earned
from populations.row_decoders import fetch_decisions
from populations.state import Lineage

OTHER = "other"
"""Whom a gain is credited to when the plan does not witness the strategy that was claimed."""


def name_credits(
    earned: Sequence[Earned], lineage: Lineage, connection: sqlite3.Connection, library: Library
) -> list[Credit]:
    """What was paid, with names, in order."""
    return [_name(one, lineage, connection, library.strategy) for one in earned]


def _name(one: Earned, lineage: Lineage, connection: sqlite3.Connection, strategy: Callable[[int], Strategy]) -> Credit:
    candidate = one.candidate
    attempt, rowid = lineage.attempt[candidate], lineage.strategy[candidate]
    claimed = strategy(rowid) if rowid else None
    witnessed = bool(lineage.witnessed[candidate])
    (operator,) = connection.execute("SELECT operator FROM candidates WHERE id = ?", (candidate,)).fetchone()
    return Credit(
        attempt=attempt,
        candidate=candidate,
        operator=operator,
        strategy=claimed.name if claimed is not None and witnessed else OTHER,
        witnessed=witnessed,
        reward=one.reward,
        log_gain=one.log_gain,
        depth=one.depth,
        decision=_decision(fetch_decisions(connection, attempt, strategy), claimed),
    )


def _decision(decisions: Sequence[Decision], claimed: Strategy | None) -> Decision | None:
    """The decision that led to the claimed strategy; the last one when none names it."""
    for decision in reversed(decisions):
        if decision.offered[decision.chosen] == claimed:
            return decision
    return decisions[-1] if decisions else None
