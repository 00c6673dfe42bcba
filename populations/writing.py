"""Rows of an attempt: opened, what thinking left behind, how it ended. All of it runs inside `Store.write`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from evo_kernel.types import Call, Proposal, Strategy
from populations.encoding import dumps
from populations.store import Store

_CALL = attrgetter(*(field.name for field in fields(Call)))  # in the order of the columns


def hold_attempt(
    store: Store, attempt: int, run: int, parent: int | None, island: int, selector: str, chosen: Sequence[int]
) -> None:
    """Its row is written by `store.release`. `chosen`: the candidates that its operator is shown beside the parent."""
    store.hold(attempt, (run, parent, island, selector, dumps(chosen), time.time()))


def write_candidate(
    store: Store, candidate: int, attempt: int, proposal: Proposal, parent: int | None, island: int, generation: int
) -> int:
    """Returns the source's rowid."""
    source = store.intern_source(proposal.source)
    strategy = store.intern_strategy(proposal.strategy)
    values = (
        candidate, attempt, source, proposal.operator, strategy, parent, island, generation,
        proposal.probes, proposal.wall_s, len(proposal.parents), time.time(),
    )  # fmt: skip
    store.connection.execute("INSERT INTO candidates VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    return source


def write_failure(
    store: Store, attempt: int, operator: str, reason: str, parent: int, proposal: Proposal | None
) -> None:
    """An attempt that ended without a candidate. `proposal`: what it cost, if anything."""
    strategy = store.intern_strategy(claimed_strategy(proposal) if proposal else None)
    spent = (proposal.probes, proposal.wall_s) if proposal else (0, 0.0)
    values = (attempt, operator, reason, parent, strategy, *spent, time.time())
    store.connection.execute("INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)


def write_proposal(store: Store, attempt: int, proposal: Proposal, parents: Sequence[tuple[str, int]] = ()) -> None:
    """What thinking left behind, whether or not a candidate came of it; `parents` as (role, candidate)."""
    connection = store.connection
    for position, decision in enumerate(proposal.decisions):
        offered = dumps([store.intern_strategy(strategy) for strategy in decision.offered])
        values = (decision.policy, offered, dumps(decision.probabilities), decision.chosen, dumps(decision.context))
        connection.execute("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?)", (attempt, position, *values))
    connection.executemany(
        "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?)",
        ((attempt, n, step.action, step.outcome, step.detail, step.wall_s) for n, step in enumerate(proposal.steps)),
    )
    connection.executemany(
        "INSERT INTO parents VALUES (?, ?, ?, ?)",
        ((attempt, n, candidate, role) for n, (role, candidate) in enumerate(parents)),
    )
    _write_new_calls(connection, attempt, proposal.calls)


def write_calls(connection: sqlite3.Connection, attempt: int, calls: Sequence[Call]) -> None:
    """More calls of an attempt, after those that it has."""
    sql = "SELECT IFNULL(MAX(position) + 1, 0) FROM calls WHERE attempt = ?"
    first = connection.execute(sql, (attempt,)).fetchone()[0]
    connection.executemany(
        "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        ((attempt, first + n, *_CALL(call)) for n, call in enumerate(calls)),
    )


def _write_new_calls(connection: sqlite3.Connection, attempt: int, calls: Sequence[Call]) -> None:
    """Those of a finished attempt's calls that were not written as they were made.

    What its operator found wrong with an answer only after that is kept as a remark.
    """
    sql = (
        "SELECT position, IFNULL(error, ''), model, tokens_in, tokens_out, tokens_cached, wall_s FROM calls"
        " WHERE attempt = ? ORDER BY position"
    )
    written: dict[tuple[Any, ...], list[tuple[int, str]]] = {}
    for position, error, *key in connection.execute(sql, (attempt,)):
        written.setdefault(tuple(key), []).append((position, error))
    remarks, new = [], []
    for call in calls:
        # Not known by its messages: whoever makes thousands of calls in an attempt does not hold on to them.
        found = written.get((call.model, call.tokens_in, call.tokens_out, call.tokens_cached, call.wall_s))
        if not found:
            new.append(call)
            continue
        position, error = found.pop(0)
        if call.error != error:
            remarks.append((attempt, position, call.error))
    connection.executemany("INSERT OR IGNORE INTO call_remarks VALUES (?, ?, ?)", remarks)
    write_calls(connection, attempt, new)


def claimed_strategy(proposal: Proposal) -> Strategy | None:
    """What the proposal says it did, or, where it got no further, what its last decision chose."""
    if proposal.strategy is not None or not proposal.decisions:
        return proposal.strategy
    last = proposal.decisions[-1]
    return last.offered[last.chosen]
