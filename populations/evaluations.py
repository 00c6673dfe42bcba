"""An evaluation as rows, and as the verdict that the search state takes in. What writes runs inside `Store.write`."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any

from evo_kernel.types import Evaluation, Measurement, PairedComparison, PlanVerdict
from evo_kernel.types.evaluations import DRIFT
from populations.encoding import digest, dumps, encode_features, encode_knobs, plan_key
from populations.islands import Placement
from populations.leaderboard import TakenVerdict
from populations.store import Store

INSERT_EVALUATION = (
    "INSERT INTO evaluations (run, candidate, environment, purpose, status, score, log_us, log_variance, light_share,"
    " cell, plan_key, cost, fresh, witnessed, reason, knobs, checks, charged, measured, gpu_s, wall_s, at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
INSERT_MEASUREMENT = (
    "INSERT INTO measurements VALUES (?, ?, (SELECT id FROM plans WHERE hash = ?), ?, ?, ?, ?, ?, ?, ?, ?,"
    " (SELECT id FROM features WHERE digest = ?), ?, ?, ?, ?)"
)
INSERT_VERDICT = "INSERT INTO verdicts VALUES (?, ?, (SELECT id FROM plans WHERE hash = ?), ?, ?, ?, ?, ?)"
INSERT_COMPARISON = (
    "INSERT INTO comparisons VALUES (?, ?, (SELECT id FROM plans WHERE hash = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
INSERT_SOURCE_PLAN = "INSERT INTO source_plans VALUES (?, ?, ?, ?, ?, ?, (SELECT id FROM plans WHERE hash = ?))"


def summarise(evaluation: Evaluation, candidate: int, probes: int, witnessed: bool) -> TakenVerdict:
    """What the search state takes in. `probes`: evaluations that the proposal had spent before the judge saw it."""
    log_us: float | None = evaluation.log_us
    if math.isnan(evaluation.log_us):  # nothing was timed: a judge that only scores says how fast by its score
        log_us = -math.log(evaluation.score) if evaluation.score else None
    features = evaluation.features
    shares = [m.light_share for m in evaluation.measurements if m.light_share is not None]
    charged = sum(evaluation.charged.values())
    timed_anew = any(verdict.measurement is not None for verdict in evaluation.verdicts)
    return TakenVerdict(
        candidate=candidate,
        purpose=str(evaluation.purpose),
        status=str(evaluation.status),
        score=evaluation.score,
        log_us=log_us if evaluation.passed else None,
        log_variance=log_variance(evaluation),
        light_share=math.fsum(shares) / len(shares) if shares else None,
        cell="/".join(map(str, features.cell)) if features else "none/load/plain/1",
        plan_key=plan_key(evaluation.measurements),
        cost=float(max(1, charged + probes)),
        fresh=int(timed_anew or charged > 0),
        witnessed=int(witnessed),
    )


def log_variance(evaluation: Evaluation) -> float:
    """Variance of the mean log time, from the intervals of the cases: see populations/archive.py."""
    found = evaluation.measurements
    if evaluation.environment.kind != "measured" or not found:
        return 0.0
    return math.fsum(m.log_deviation**2 for m in found) / len(found) ** 2 + DRIFT * DRIFT


def write_evaluation(
    store: Store, evaluation: Evaluation, verdict: TakenVerdict, *, run: int, environment: int, source: int, at: float
) -> int:
    """The evaluation with all its parts; returns its id."""
    connection = store.connection
    measurements, verdicts = _number_measurements(evaluation)
    values = (
        run, verdict.candidate, environment, verdict.purpose, verdict.status, verdict.score, verdict.log_us,
        verdict.log_variance, verdict.light_share, verdict.cell, verdict.plan_key, verdict.cost, verdict.fresh,
        verdict.witnessed, evaluation.reason, encode_knobs(evaluation.knobs),
        dumps([astuple(check) for check in evaluation.checks]), dumps(dict(evaluation.charged)),
        len(evaluation.measurements), evaluation.gpu_s, evaluation.wall_s, at,
    )  # fmt: skip
    number = connection.execute(INSERT_EVALUATION, values).lastrowid
    assert number is not None
    _write_plans(connection, evaluation)
    digests = _write_features(connection, measurements)
    connection.executemany(INSERT_MEASUREMENT, _measurement_rows(number, measurements, digests))
    connection.executemany(INSERT_VERDICT, _verdict_rows(number, verdicts))
    connection.executemany(INSERT_COMPARISON, _comparison_rows(number, evaluation.comparisons))
    device = evaluation.environment.device
    connection.executemany(
        INSERT_SOURCE_PLAN,
        (
            (number, n, source, case, encode_knobs(knobs), device, plan)
            for n, (case, knobs, plan) in enumerate(evaluation.plans)
        ),
    )
    return number


def write_placements(connection: sqlite3.Connection, evaluation: int, placements: Iterable[Placement]) -> None:
    connection.executemany(
        "INSERT INTO placements (evaluation, candidate, island, cell) VALUES (?, ?, ?, ?)",
        ((evaluation, *placement) for placement in placements),
    )


def _number_measurements(
    evaluation: Evaluation,
) -> tuple[list[Measurement], list[tuple[PlanVerdict, int | None]]]:
    """All distinct measurements, the evaluation's own first, and each verdict with its measurement's position."""
    measurements = list(evaluation.measurements)
    numbered: list[tuple[PlanVerdict, int | None]] = []
    for verdict in evaluation.verdicts:
        found = verdict.measurement
        if found is not None and found not in measurements:
            measurements.append(found)
        numbered.append((verdict, None if found is None else measurements.index(found)))
    return measurements, numbered


def _write_plans(connection: sqlite3.Connection, evaluation: Evaluation) -> None:
    plans = {plan for _, _, plan in evaluation.plans}
    plans.update(measurement.plan for measurement in evaluation.measurements)
    plans.update(comparison.plan for comparison in evaluation.comparisons)
    for verdict in evaluation.verdicts:
        plans.add(verdict.plan)
        if verdict.measurement is not None:
            plans.add(verdict.measurement.plan)
    connection.executemany("INSERT OR IGNORE INTO plans (hash) VALUES (?)", ((plan,) for plan in sorted(plans)))


def _write_features(connection: sqlite3.Connection, measurements: Sequence[Measurement]) -> list[str | None]:
    """Features are the same for all measurements of a plan, mostly: each kind is stored once, found by its digest."""
    digests: list[str | None] = []
    for measurement in measurements:
        if measurement.features is None:
            digests.append(None)
            continue
        text = encode_features(measurement.features)
        digests.append(digest(text))
        connection.execute("INSERT OR IGNORE INTO features (digest, data) VALUES (?, ?)", (digests[-1], text))
    return digests


def _measurement_rows(
    number: int, measurements: Sequence[Measurement], digests: Sequence[str | None]
) -> Iterable[tuple[Any, ...]]:
    for position, (m, features) in enumerate(zip(measurements, digests, strict=True)):
        yield (
            number, position, m.plan, m.case, m.median_us, m.iqr_us, m.n, m.low_us, m.high_us,
            dumps(dict(m.baselines_us)), m.light_share, features, dumps(dict(m.details)), m.clock_mhz, m.power_w,
            m.drift,
        )  # fmt: skip


def _comparison_rows(number: int, comparisons: Sequence[PairedComparison]) -> Iterable[tuple[Any, ...]]:
    for position, one in enumerate(comparisons):
        yield (
            number, position, one.plan, one.case, str(one.kind), str(one.against), one.ratio, one.low, one.high,
            one.pairs, one.verdict, one.claimed,
        )  # fmt: skip


def _verdict_rows(number: int, verdicts: Sequence[tuple[PlanVerdict, int | None]]) -> Iterable[tuple[Any, ...]]:
    for position, (verdict, measurement) in enumerate(verdicts):
        check = dumps(astuple(verdict.check)) if verdict.check is not None else None
        yield (
            number, position, verdict.plan, verdict.case, str(verdict.status), verdict.reason, check, measurement,
        )  # fmt: skip
