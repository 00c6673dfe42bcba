"""Cache of candidates as operators and agents see them: texts and evaluations are read from the file when asked for."""

from __future__ import annotations

import heapq
import math
import sqlite3
from collections.abc import Mapping, Sequence

from evo_kernel.knobs import apply_knobs
from evo_kernel.lru_cache import Recent
from evo_kernel.types import Credit, Evaluation, Knobs, Purpose, ScoredCandidate, Source, Status, Strategy, Tried
from evo_kernel.types.notes import Version, VersionOrder
from populations.connect import fetch_one
from populations.credit import Earned
from populations.rows import fetch_decisions, fetch_evaluation, fetch_source, fetch_strategy
from populations.search_state import STATUS_OF_CODE, SearchState

EVALUATIONS, SOURCES, STRATEGIES, CASES, PATHS = 256, 256, 4096, 1024, 512
OTHER = "other"
"""Whom a gain is credited to when the plan does not witness the strategy that was claimed."""
TRIED = 24  # of a parent's children, the youngest


class Library:
    """Not thread-safe: an open population's lock guards it. `environment`: the key of the one that verdicts are of."""

    def __init__(self, connection: sqlite3.Connection, state: SearchState, environment: str) -> None:
        self._connection, self._state, self._environment = connection, state, environment
        self._board = state.board(environment)
        self._evaluations: Recent[int, Evaluation | None] = Recent(EVALUATIONS)
        self._sources: Recent[tuple[int, Knobs], Source] = Recent(SOURCES)
        self._strategies: Recent[int, Strategy] = Recent(STRATEGIES)
        self._cases: Recent[int, Mapping[str, float]] = Recent(CASES)
        self._paths: Recent[int, tuple[Strategy, ...]] = Recent(PATHS)

    def proposed_source(self, candidate: int) -> Source:
        rowid = self._state.lineage.source[candidate]
        return self._sources.find((rowid, ()), lambda: fetch_source(self._connection, rowid))

    def strategy(self, rowid: int) -> Strategy:
        return self._strategies.find(rowid, lambda: fetch_strategy(self._connection, rowid))

    def evaluation(self, candidate: int) -> Evaluation | None:
        """The latest score in this environment, the latest confirmation apart; None where there is none."""
        sql = (
            "SELECT e.id FROM evaluations e JOIN environments n ON n.id = e.environment WHERE e.candidate = ?"
            " AND n.key = ? AND e.purpose = 'score' AND e.status != 'infra_error' ORDER BY e.id DESC LIMIT 1"
        )

        def fetch() -> Evaluation | None:
            number = fetch_one(self._connection, sql, (candidate, self._environment))
            return fetch_evaluation(self._connection, number) if number else None

        return self._evaluations.find(candidate, fetch)

    def told(self, candidate: int, evaluation: Evaluation) -> None:
        """A new verdict: what was kept of the candidate is out of date."""
        if evaluation.purpose is Purpose.SCORE and evaluation.environment.key == self._environment:
            self._evaluations.put(candidate, evaluation)
            self._cases.drop(candidate)

    def case_times(self, candidate: int) -> Mapping[str, float]:
        """Log time (µs) by search case, of the latest score in this environment."""

        def fetch() -> Mapping[str, float]:
            evaluation = self.evaluation(candidate)
            return {m.case: math.log(m.median_us) for m in evaluation.measurements} if evaluation else {}

        return self._cases.find(candidate, fetch)

    def path(self, candidate: int) -> tuple[Strategy, ...]:
        """Strategies from the root to this candidate, oldest first."""
        lineage, tail = self._state.lineage, []
        at = candidate
        while at and at not in self._paths:
            if lineage.strategy[at]:
                tail.append(self.strategy(lineage.strategy[at]))
            at = lineage.parent[at]
        path = (self._paths[at] if at else ()) + tuple(reversed(tail))
        self._paths.put(candidate, path)
        return path

    def relative(self, candidate: int) -> ScoredCandidate:
        lineage, evaluation = self._state.lineage, self.evaluation(candidate)
        knobs = evaluation.knobs if evaluation is not None else ()
        key = (lineage.source[candidate], knobs)
        source = self._sources.find(key, lambda: apply_knobs(self.proposed_source(candidate), knobs))
        generation, island = lineage.generation[candidate], lineage.island[candidate]
        return ScoredCandidate(candidate, source, generation, island, evaluation, self.path(candidate))

    def tried(self, parent: int) -> tuple[Tried, ...]:
        """What was tried on a parent, youngest first: its children, then attempts that came to nothing."""
        lineage, found = self._state.lineage, list[Tried]()
        for child in lineage.children(parent):
            if len(found) >= TRIED:
                break
            if lineage.strategy[child]:
                found.append(Tried(self.strategy(lineage.strategy[child]), *self._standing(child)))
        rows = self._connection.execute(
            "SELECT strategy FROM failures WHERE parent = ? AND strategy IS NOT NULL ORDER BY attempt DESC LIMIT ?",
            (parent, TRIED - len(found)),
        )
        found.extend(Tried(self.strategy(rowid), None, None) for (rowid,) in rows.fetchall())
        return tuple(found)

    def versions(self, limit: int, order: VersionOrder, of: int | None) -> list[Version]:
        """At most `limit`, with their standing here; `path`: from the root to `of` (the best), the latest ones."""
        lineage, board = self._state.lineage, self._board
        if order == "path":
            numbers: list[int] = []
            at = of or board.best()
            while at and len(numbers) < limit:
                numbers.append(at)
                at = lineage.parent[at]
            numbers.reverse()
        elif order == "best":
            timed = (candidate for candidate, time in enumerate(board.times) if not math.isnan(time))
            numbers = heapq.nsmallest(limit, timed, key=lambda candidate: board.times[candidate])
        else:
            last = len(lineage)
            numbers = list(range(last, max(last - limit, 0), -1))
        return [self._version(number) for number in numbers]

    def credits(self, earned: Sequence[Earned]) -> list[Credit]:
        """What the ledger paid (credit.py), with names, in order."""
        return list(map(self._credit, earned))

    def _standing(self, candidate: int) -> tuple[Status | None, float | None]:
        """Its status here, and log(parent ÷ candidate); None where it has none."""
        board, parent = self._board, self._state.lineage.parent[candidate]
        status = STATUS_OF_CODE.get(board.status[candidate]) if candidate < len(board.status) else None
        gain = board.times[parent] - board.times[candidate] if status and parent else math.nan
        return status, None if math.isnan(gain) else gain

    def _version(self, candidate: int) -> Version:
        lineage, (status, gain) = self._state.lineage, self._standing(candidate)
        strategy = self.strategy(lineage.strategy[candidate]).name if lineage.strategy[candidate] else ""
        parent, score = lineage.parent[candidate] or None, self._board.score(candidate)
        return Version(candidate, parent, self._operator(candidate), strategy, str(status or ""), score, gain)

    def _credit(self, one: Earned) -> Credit:
        lineage, candidate = self._state.lineage, one.candidate
        attempt, rowid = lineage.attempt[candidate], lineage.strategy[candidate]
        claimed = self.strategy(rowid) if rowid else None
        witnessed = bool(lineage.witnessed[candidate])
        # The decision that led to the claimed strategy; the last one when none names it.
        decisions = fetch_decisions(self._connection, attempt, self.strategy)[::-1]
        led = next(
            (one for one in decisions if one.offered[one.chosen] == claimed), decisions[0] if decisions else None
        )
        return Credit(
            attempt=attempt,
            candidate=candidate,
            operator=self._operator(candidate),
            strategy=claimed.name if claimed is not None and witnessed else OTHER,
            witnessed=witnessed,
            reward=one.reward,
            log_gain=one.log_gain,
            depth=one.depth,
            decision=led,
        )

    def _operator(self, candidate: int) -> str:
        return fetch_one(self._connection, "SELECT operator FROM candidates WHERE id = ?", (candidate,))
