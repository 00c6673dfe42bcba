"""Texts and evaluations by candidate, read from the file when asked for, the latest used few kept at hand."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar

from evo_kernel.knobs import apply_knobs
from evo_kernel.types import Evaluation, Knobs, Purpose, ScoredCandidate, Source, Strategy, Tried
from populations.row_decoders import fetch_evaluation, fetch_source, fetch_strategy
from populations.state import STATUS_OF_CODE, Leaderboard, SearchState
from populations.store import Store

Key = TypeVar("Key")
Value = TypeVar("Value")
EVALUATIONS, SOURCES, STRATEGIES, CASES, PATHS = 256, 256, 4096, 1024, 512
TRIED = 24  # of a parent's children, the youngest


class Recent(OrderedDict[Key, Value]):
    """The latest used entries of a function, at most `size`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def find(self, key: Key, make: Callable[[], Value]) -> Value:
        if key in self:
            self.move_to_end(key)
            return self[key]
        value = make()
        self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._size:
            self.popitem(last=False)


class Library:
    """Not thread-safe: the population's lock guards it. `environment` is the key that standings are read in."""

    def __init__(self, store: Store, state: SearchState, environment: str) -> None:
        self._store, self._state, self._environment = store, state, environment
        self._evaluations: Recent[int, Evaluation | None] = Recent(EVALUATIONS)
        self._sources: Recent[tuple[int, Knobs], Source] = Recent(SOURCES)
        self._strategies: Recent[int, Strategy] = Recent(STRATEGIES)
        self._cases: Recent[int, Mapping[str, float]] = Recent(CASES)
        self._paths: Recent[int, tuple[Strategy, ...]] = Recent(PATHS)

    @property
    def _board(self) -> Leaderboard:
        return self._state.board(self._environment)

    def proposed_source(self, candidate: int) -> Source:
        rowid = self._state.lineage.source[candidate]
        return self._sources.find((rowid, ()), lambda: fetch_source(self._store.connection, rowid))

    def _scored_source(self, candidate: int, evaluation: Evaluation | None) -> Source:
        knobs = evaluation.knobs if evaluation is not None else ()
        key = (self._state.lineage.source[candidate], knobs)
        return self._sources.find(key, lambda: apply_knobs(self.proposed_source(candidate), knobs))

    def strategy(self, rowid: int) -> Strategy:
        return self._strategies.find(rowid, lambda: fetch_strategy(self._store.connection, rowid))

    def evaluation(self, candidate: int) -> Evaluation | None:
        """The latest score in this environment, the latest confirmation apart; None where there is none."""
        return self._evaluations.find(candidate, lambda: self._fetch_evaluation(candidate))

    def told(self, candidate: int, evaluation: Evaluation) -> None:
        """A new verdict: what was kept of the candidate is out of date."""
        if evaluation.purpose is Purpose.SCORE and evaluation.environment.key == self._environment:
            self._evaluations.put(candidate, evaluation)
            self._cases.pop(candidate, None)

    def case_times(self, candidate: int) -> Mapping[str, float]:
        """Log time (µs) by search case, of the latest score in this environment."""
        return self._cases.find(candidate, lambda: self._fetch_cases(candidate))

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
        return ScoredCandidate(
            candidate=candidate,
            source=self._scored_source(candidate, evaluation),
            generation=lineage.generation[candidate],
            island=lineage.island[candidate],
            evaluation=evaluation,
            strategies=self.path(candidate),
        )

    def tried(self, parent: int) -> tuple[Tried, ...]:
        """What was tried on a parent, youngest first: its children, then attempts that came to nothing."""
        lineage, board = self._state.lineage, self._board
        known = len(board.times)
        found: list[Tried] = []
        for child in lineage.children(parent):
            if len(found) >= TRIED:
                break
            if lineage.strategy[child]:
                code = board.status[child] if child < known else 0
                gain = board.times[parent] - board.times[child] if code and parent < known else math.nan
                strategy = self.strategy(lineage.strategy[child])
                found.append(Tried(strategy, STATUS_OF_CODE.get(code), None if math.isnan(gain) else gain))
        rows = self._store.connection.execute(
            "SELECT strategy FROM failures WHERE parent = ? AND strategy IS NOT NULL ORDER BY attempt DESC LIMIT ?",
            (parent, TRIED - len(found)),
        )
        found.extend(Tried(self.strategy(rowid), None, None) for (rowid,) in rows.fetchall())
        return tuple(found)

    def _fetch_evaluation(self, candidate: int) -> Evaluation | None:
        row = self._store.row(
            "SELECT e.id FROM evaluations e JOIN environments n ON n.id = e.environment WHERE e.candidate = ?"
            " AND n.key = ? AND e.purpose = 'score' AND e.status != 'infra_error' ORDER BY e.id DESC LIMIT 1",
            (candidate, self._environment),
        )
        return fetch_evaluation(self._store.connection, row[0]) if row else None

    def _fetch_cases(self, candidate: int) -> Mapping[str, float]:
        evaluation = self.evaluation(candidate)
        return {m.case: math.log(m.median_us) for m in evaluation.measurements} if evaluation else {}
