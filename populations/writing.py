"""Rows of attempts and evaluations, written inside `Store.write`; the verdict that the search state takes in."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import astuple, fields
from operator import attrgetter
from typing import Any

from evo_kernel.types import Call, Evaluation, Measurement, Proposal
from evo_kernel.types.evaluations import DRIFT
from populations.rows import digest, dumps, encode_features, encode_knobs, plan_key
from populations.search_state import TakenVerdict
from populations.store import Store

_CALL = attrgetter(*(field.name for field in fields(Call)))  # in the order of the columns


def hold_attempt(
    store: Store, attempt: int, run: int, parent: int | None, island: int, selector: str, chosen: Sequence[int]
) -> None:
    """Keep its row until something is written that names it (`store.release`): most that come to nothing leave nothing.

    `chosen`: the candidates that its operator is shown beside the parent.
    """
    store.held[attempt] = (run, parent, island, selector, dumps(chosen), time.time())


def write_candidate(
    store: Store, candidate: int, attempt: int, proposal: Proposal, parent: int | None, island: int, generation: int
) -> int:
    """Returns the source's rowid."""
    text = proposal.source
    source = store.intern("sources", "sha256", {"sha256": text.sha256, "language": text.language, "text": text.text})
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
    claimed = proposal.strategy if proposal else None
    if proposal and claimed is None and proposal.decisions:  # it got no further than its last choice
        last = proposal.decisions[-1]
        claimed = last.offered[last.chosen]
    strategy = store.intern_strategy(claimed)
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


LOOKUP = {
    "plan": "(SELECT id FROM plans WHERE hash = ?)",
    "features": "(SELECT id FROM features WHERE digest = ?)",
}
"""Columns that hold a row of another table, told by what that row is found by."""
MEASURED = ("plan", "median_us", "iqr_us", "n", "low_us", "high_us", "light_share", "clock_mhz", "power_w", "drift")


def summarise(evaluation: Evaluation, candidate: int, probes: int, witnessed: bool) -> TakenVerdict:
    """What the search state takes in. `probes`: evaluations that the proposal had spent before the judge saw it."""
    features = evaluation.features
    shares = [m.light_share for m in evaluation.measurements if m.light_share is not None]
    charged = sum(evaluation.charged.values())
    timed_anew = any(verdict.measurement is not None for verdict in evaluation.verdicts)
    variance, timed = 0.0, evaluation.measurements  # of the mean log time, from the cases' intervals: see archive.py
    if evaluation.environment.kind == "measured" and timed:
        variance = math.fsum(m.log_deviation**2 for m in timed) / len(timed) ** 2 + DRIFT * DRIFT
    return TakenVerdict(
        candidate=candidate,
        purpose=str(evaluation.purpose),
        status=str(evaluation.status),
        score=evaluation.score,
        log_us=evaluation.standing if math.isfinite(evaluation.standing) else None,
        log_variance=variance,
        light_share=math.fsum(shares) / len(shares) if shares else None,
        cell="/".join(map(str, features.cell)) if features else "none/load/plain/1",
        plan_key=plan_key(evaluation.measurements),
        cost=float(max(1, charged + probes)),
        fresh=int(timed_anew or charged > 0),
        witnessed=int(witnessed),
    )


def write_evaluation(store: Store, evaluation: Evaluation, verdict: TakenVerdict, run: int, source: int) -> int:
    """The evaluation with all its parts; returns its id."""
    connection = store.connection
    measurements = list(evaluation.measurements)  # all distinct ones, the evaluation's own first
    for verdict_of_plan in evaluation.verdicts:
        if (found := verdict_of_plan.measurement) is not None and found not in measurements:
            measurements.append(found)
    row = {
        "run": run,
        "environment": store.intern_environment(evaluation.environment),
        **verdict._asdict(),
        "reason": evaluation.reason,
        "knobs": encode_knobs(evaluation.knobs),
        "checks": dumps([astuple(check) for check in evaluation.checks]),
        "charged": dumps(dict(evaluation.charged)),
        "measured": len(evaluation.measurements),
        "gpu_s": evaluation.gpu_s,
        "wall_s": evaluation.wall_s,
        "at": time.time(),
    }
    sql = f"INSERT INTO evaluations ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    number = connection.execute(sql, tuple(row.values())).lastrowid
    assert number is not None
    plans = {one.plan for one in (*measurements, *evaluation.comparisons, *evaluation.verdicts)}
    plans |= {plan for _, _, plan in evaluation.plans}
    connection.executemany("INSERT OR IGNORE INTO plans (hash) VALUES (?)", ((plan,) for plan in sorted(plans)))
    device = evaluation.environment.device
    parts: dict[str, list[dict[str, Any]]] = {
        "measurements": [_measurement(connection, one) for one in measurements],
        "verdicts": [
            {"case_name": one.case, "plan": one.plan, "status": str(one.status), "reason": one.reason,
             "check_result": dumps(astuple(one.check)) if one.check is not None else None,
             "measurement": None if one.measurement is None else measurements.index(one.measurement)}
            for one in evaluation.verdicts
        ],
        "comparisons": [
            {"case_name": one.case, "case_kind": str(one.kind), "against": str(one.against), "plan": one.plan,
             "ratio": one.ratio, "low": one.low, "high": one.high, "pairs": one.pairs, "verdict": one.verdict,
             "claimed": one.claimed}
            for one in evaluation.comparisons
        ],
        "source_plans": [
            {"source": source, "case_name": case, "knobs": encode_knobs(knobs), "target": device, "plan": plan}
            for case, knobs, plan in evaluation.plans
        ],
    }  # fmt: skip
    for table, rows in parts.items():
        if rows:
            marks = ", ".join(LOOKUP.get(name, "?") for name in rows[0])
            connection.executemany(
                f"INSERT INTO {table} (evaluation, position, {', '.join(rows[0])}) VALUES (?, ?, {marks})",
                [(number, position, *row.values()) for position, row in enumerate(rows)],
            )
    return number


def _measurement(connection: sqlite3.Connection, one: Measurement) -> dict[str, Any]:
    """Its columns. Features are the same for all measurements of a plan, mostly: each kind is stored once."""
    found = None
    if one.features is not None:
        text = encode_features(one.features)
        found = digest(text)
        connection.execute("INSERT OR IGNORE INTO features (digest, data) VALUES (?, ?)", (found, text))
    json = {"baselines_us": dumps(dict(one.baselines_us)), "details": dumps(dict(one.details))}
    return {"case_name": one.case, **{name: getattr(one, name) for name in MEASURED}, **json, "features": found}
