"""Following a population: what an onlooker is shown, kept up to date by reading only the rows that are new.

Tables are insert-only, so everything here is a running sum: a look at a file of a hundred thousand candidates takes a
second the first time and microseconds a new row afterwards, however many people look.
"""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from copy import copy
from typing import Any

from populations import lineage
from populations.connect import fetch_one, has_table
from populations.encoding import loads
from populations.leaderboard import STATUS_OF_CODE, TakenVerdict
from populations.replay import Replay
from populations.row_decoders import fetch_environment
from populations.spending import SpendingCurve
from populations.views import CellView, EarnedView, Overview, Rise

LATEST = 12
NAN = math.nan


class Follower:
    """Reads through one connection; for one thread at a time. `look` takes in what is new, `overview` tells it.

    Who stands where is the search's own state, replayed as the file grows; the rest are running sums.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._begin(None)

    def _begin(self, environment: int | None) -> None:
        """Everything from the first row on: another environment is another story."""
        self.environment = environment
        self._key = fetch_environment(self._connection, environment).key if environment else ""
        self._replay = Replay(self._connection)
        self.board = self._replay.state.board(self._key)
        self.parent = self._replay.state.lineage.parent  # by candidate; 0: a root
        self.rose = array("q")
        self.reading = {"candidates": 0, "evaluations": 0, "failures": 0, "calls": 0, "attempts": 0, "turns": 0}
        self._kind: list[tuple[str, str | None, int, int]] = [("", None, 0, 0)]  # operator, strategy, island, attempt
        self._credits: dict[str, dict[str, EarnedView]] = {"operator": {}, "strategy": {}, "model": {}, "island": {}}
        self._rises: list[Rise] = []
        self._low = math.inf
        self._cells: Counter[str] = Counter()
        self._latest: deque[int] = deque(maxlen=LATEST)
        self._models: dict[int, set[str]] = defaultdict(set)
        self._cost: dict[int, float] = defaultdict(float)  # dollars by attempt
        self._spending = SpendingCurve()
        self._tokens, self._gpu_s = 0, 0.0
        self._failures, self._attempts = 0, 0
        self._failed: set[int] = set()

    # ---- reading ----------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Take in what is new; whether anything was."""
        newest = lineage.latest_environment(self._connection)
        if newest is None:
            newest = fetch_one(self._connection, "SELECT environment FROM runs ORDER BY id DESC LIMIT 1")
        if newest != self.environment:
            self._begin(newest)
        before = dict(self.reading)
        self._connection.execute("BEGIN")  # one moment for all tables
        try:
            self._read_calls()
            self._read_turns()
            self._read_candidates()
            self._read_failures()
            self._read_evaluations()
            for _, parent in self._new("attempts", "SELECT id, parent FROM attempts WHERE id > ? ORDER BY id"):
                self._attempts += parent is not None
        finally:
            self._connection.execute("ROLLBACK")
        return self.reading != before

    def _new(self, table: str, sql: str) -> Iterator[tuple[Any, ...]]:
        """Rows after those that were read; the first column is what they are counted by."""
        last = self.reading[table]
        for row in self._connection.execute(sql, (last,)):
            self.reading[table] = row[0]
            yield row

    def _read_calls(self) -> None:
        sql = "SELECT rowid, attempt, model, dollars, tokens_in + tokens_out FROM calls WHERE rowid > ? ORDER BY rowid"
        for _, attempt, model, dollars, tokens in self._new("calls", sql):
            self._tokens += tokens
            self._models[attempt].add(model)
            self._credit("model", model).dollars += dollars or 0.0
            self._cost[attempt] += dollars or 0.0
            self._spending.spend(attempt, dollars=dollars or 0.0)

    def _read_candidates(self) -> None:
        sql = (
            "SELECT c.id, c.attempt, c.operator, s.name, c.island, c.probes FROM candidates c"
            " LEFT JOIN strategies s ON s.id = c.strategy WHERE c.id > ? ORDER BY c.id"
        )
        for _, attempt, operator, strategy, island, probes in self._new("candidates", sql):
            self._kind.append((operator, strategy, island, attempt))
            self._spending.spend(attempt, evaluations=probes)

    def _read_failures(self) -> None:
        sql = (
            "SELECT f.attempt, f.operator, s.name, a.island, f.probes FROM failures f JOIN attempts a"
            " ON a.id = f.attempt LEFT JOIN strategies s ON s.id = f.strategy"
        )
        # Attempts fail in any order, so it is the number of rows that says whether there are new ones.
        count = fetch_one(self._connection, "SELECT COUNT(*) FROM failures")
        if count == self.reading["failures"]:
            return
        seen = self._failed
        for attempt, operator, strategy, island, probes in self._connection.execute(sql):
            if attempt in seen:
                continue
            seen.add(attempt)
            self._failures += 1
            self._spending.spend(attempt, evaluations=probes)
            for credit in self._credits_of(operator, strategy, island, attempt):
                credit.failures += 1
        self.reading["failures"] = count

    def _read_evaluations(self) -> None:
        began = dict(self._connection.execute("SELECT id, at FROM runs"))
        for row in self._replay.advance():
            self.reading["evaluations"] = row.number
            verdict = row.verdict
            self._gpu_s += row.gpu_s
            evaluations = sum(loads(row.charged).values()) if row.charged != "{}" else 0
            self._spending.judged(self._kind[verdict.candidate][3], evaluations, row.run, began[row.run], row.at)
            if row.environment == self._key and verdict.purpose == "score" and verdict.status != "infra_error":
                self._take_score(verdict)
        self.board.grow(len(self.parent))

    def _read_turns(self) -> None:
        if not has_table(self._connection, "turns"):
            return
        sql = "SELECT rowid, attempt, charged, gpu_s FROM turns WHERE rowid > ? ORDER BY rowid"
        for _, attempt, charged, gpu_s in self._new("turns", sql):
            self._spending.spend(attempt, sum(loads(charged).values()))
            self._gpu_s += gpu_s

    # ---- one verdict ------------------------------------------------------------------------------------------------

    def _take_score(self, verdict: TakenVerdict) -> None:
        """Before the board is told of it."""
        candidate, passed = verdict.candidate, verdict.status == "passed"
        self.board.grow(len(self.parent))
        log_us = NAN if verdict.log_us is None else verdict.log_us
        rises = log_us < self._low  # false for NaN
        if rises:
            self._low = log_us
            self.rose.append(candidate)
            spent = self._spending.by_now()
            self._rises.append(Rise(candidate, verdict.score or NAN, log_us, self.action_of(candidate), *spent))
        if self.board.status[candidate]:
            return  # measured again
        self._latest.appendleft(candidate)
        if verdict.cell and passed:
            self._cells[verdict.cell] += 1
        parent = self.parent[candidate]
        if not parent:
            return  # a planted kernel is nobody's
        gain = self.board.times[parent] - log_us
        for credit in self._credits_of(*self._kind[candidate]):
            credit.candidates += 1
            credit.passed += passed
            credit.rises += rises
            if not math.isnan(gain):
                credit.compared += 1
                credit.log_gain += gain
                credit.gained += gain > 0
                known = credit.best_log_gain
                credit.best_log_gain = gain if known is None else max(known, gain)

    def _credits_of(self, operator: str, strategy: str | None, island: int, attempt: int) -> list[EarnedView]:
        """Of an attempt that ended: asked for once. What it cost goes to all but models, which have it call by call."""
        found = [self._credit("operator", operator), self._credit("island", f"island {island}")]
        if strategy:
            found.append(self._credit("strategy", strategy))
        for credit in found:
            credit.dollars += self._cost.get(attempt, 0.0)
        return [*found, *(self._credit("model", model) for model in self._models.get(attempt, ()))]

    def _credit(self, kind: str, name: str) -> EarnedView:
        return self._credits[kind].setdefault(name, EarnedView(name))

    # ---- telling ----------------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        best, champion = self.board.best() or None, self.board.champion() or None
        evaluations, hours, dollars = self._spending.in_all()
        told = {kind: tuple(self._earned(kind)) for kind in self._credits}
        return Overview(
            environment=fetch_environment(self._connection, self.environment) if self.environment else None,
            attempts=self._attempts,
            candidates=self.reading["candidates"],
            failures=self._failures,
            evaluations=evaluations,
            hours=hours,
            dollars=dollars,
            tokens=self._tokens,
            gpu_s=self._gpu_s,
            verdicts=self.board.verdicts(),
            best=best,
            champion=champion,
            scores={number: self.board.score(number) for number in (best, champion) if number},
            rises=tuple(self._rises),
            cells=tuple(self._told_cells()),
            latest=tuple(self._latest),
            last_at=self._spending.last_at,
            operators=told["operator"],
            strategies=told["strategy"],
            models=told["model"],
            islands=told["island"],
        )

    def action_of(self, candidate: int) -> str:
        """The strategy that it claims; its operator where it claims none."""
        operator, strategy, _, _ = self._kind[candidate]
        return strategy or operator

    def status_of(self, candidate: int) -> str:
        """Of its latest score here; empty while there is none."""
        code = self.board.status[candidate]
        return str(STATUS_OF_CODE[code]) if code else ""

    def _earned(self, kind: str) -> list[EarnedView]:
        found = map(copy, self._credits[kind].values())
        return sorted(found, key=lambda one: (-one.rises, -(one.best_log_gain or 0.0), one.name))

    def _told_cells(self) -> Iterator[CellView]:
        elites: dict[str, int] = {}
        for archive in self.board.islands.archives:
            for cell, kept in archive.cells.items():
                rivals = (elites.get(cell), kept.elite.candidate)
                elites[cell] = min((one for one in rivals if one), key=lambda one: self.board.times[one])
        for cell, candidate in sorted(elites.items()):
            yield CellView(cell, self._cells[cell], candidate, self.board.score(candidate))
