"""What is known in an open population: best, champion, pending candidates, credits, totals. Nothing here writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from evo_kernel.errors import PopulationError
from evo_kernel.types import Credit, Environment, Recorded, ScoredCandidate, TaskCard
from evo_kernel.types.notes import Version, VersionOrder
from populations.candidate_cache import Library
from populations.counters import SearchTotals, Tally, read_tally, read_wall_s
from populations.open_population import OpenPopulation
from populations.replay import replay
from populations.search_state import SearchState
from populations.sessions import environment_before, measured_as_they_are
from populations.settings import PopulationSettings
from populations.store import Store
from populations.tickets import Tickets


class QueryablePopulation(OpenPopulation):
    """An open population with its search state. All methods are thread-safe."""

    def __init__(
        self,
        store: Store,
        task: TaskCard,
        task_identity: str,
        environment: Environment,
        seed: int,
        settings: PopulationSettings,
        run: dict[str, Any],
    ) -> None:
        # What earlier sessions left behind is read before this one leaves its mark.
        self._earlier_wall_s = read_wall_s(store.connection)
        self._tally: Tally = read_tally(store.connection)
        self._state: SearchState = replay(store.connection)
        self._previous_environment = environment_before(store.connection, environment)
        super().__init__(store, task, task_identity, environment, seed, settings, run)
        self._state.configure(settings)
        self._board = self._state.board(environment.key)
        self._library = Library(store.connection, self._state, environment.key)
        self._tickets = Tickets(store, self._state, self._library, task, environment)

    def pending(self) -> Sequence[Recorded]:
        """What to judge before anything new, oldest first.

        In an environment that has judged nothing yet: the elites and champions of the one before, because scores do
        not carry over; then candidates that were never judged at all.
        """
        with self._store.lock:
            previous = self._state.boards.get(self._previous_environment or "")
            again: set[int] = set()
            if previous is not None and previous is not self._board:
                known = self._board.status
                again = previous.islands.elites() | previous.confirmed - previous.refuted
                again = {c for c in again if c >= len(known) or not known[c]}
            never = [c for c in self._state.lineage.never_judged() if c not in again]
            return [self._tickets.recorded(candidate) for candidate in [*sorted(again), *never]]

    def untuned(self) -> Sequence[Recorded]:
        """First kernels that were measured once, as they are: a session may have ended before it tuned them."""
        with self._store.lock:
            found = measured_as_they_are(self._store.connection, self.environment)
            return [self._tickets.recorded(candidate) for candidate in found]

    def elites(self) -> Sequence[Recorded]:
        """The fastest candidate of every cell, fastest first."""
        with self._store.lock:
            times = self._board.times
            found = sorted((times[candidate], candidate) for candidate in self._board.islands.elites())
            return [self._tickets.recorded(candidate) for _, candidate in found]

    def credits(self) -> Sequence[Credit]:
        """The latest CREDITS_KEPT credits, in the order of `tell`."""
        with self._store.lock:
            return self._library.credits(self._state.earned)

    def best(self) -> ScoredCandidate | None:
        """The fastest candidate in this environment that no confirmation refuted."""
        with self._store.lock:
            return self._scored(self._board.best())

    def champion(self) -> ScoredCandidate | None:
        """The fastest confirmed candidate in this environment."""
        with self._store.lock:
            return self._scored(self._board.champion())

    def leader(self) -> ScoredCandidate | None:
        """The champion; the best while nothing is confirmed."""
        with self._store.lock:
            return self._scored(self._board.leader())

    def unsettled(self) -> Recorded | None:
        """The ticket of a candidate that should be measured again: noise leaves open whether it leads its cell."""
        with self._store.lock:
            found = self._board.islands.unsettled()
            return self._tickets.recorded(found.candidate) if found else None

    def relative(self, candidate: int) -> ScoredCandidate:
        """Any candidate, with its evaluation in this environment."""
        with self._store.lock:
            self._check(candidate)
            return self._library.relative(candidate)

    def recorded(self, candidate: int) -> Recorded:
        """The ticket of a candidate that is already durable: how a champion is told its confirmation."""
        with self._store.lock:
            self._check(candidate)
            return self._tickets.recorded(candidate)

    def counters(self) -> SearchTotals:
        """What was done and spent over all sessions."""
        with self._store.lock:
            tally = self._tally
            return SearchTotals(
                attempts=tally.attempts,
                candidates=len(self._state.lineage),
                failures=tally.failures,
                evaluations=dict(tally.evaluations),
                passed=self._board.passed,
                gpu_s=tally.gpu_s,
                wall_s=self._earlier_wall_s + time.time() - self._began,
                dollars=tally.dollars,
                tokens=tally.tokens,
                calls=tally.calls,
                best_score=self._board.score(self._board.best()),
            )

    def latest(self, count: int) -> Sequence[ScoredCandidate]:
        """The youngest candidates, youngest first."""
        with self._store.lock:
            last = len(self._state.lineage)
            return [self._library.relative(candidate) for candidate in range(last, max(0, last - count), -1)]

    def versions(self, limit: int, order: VersionOrder = "newest", of: int | None = None) -> Sequence[Version]:
        """Judged candidates with their standing here; `path`: from the root to `of` (the best), oldest first."""
        with self._store.lock:
            if of is not None:
                self._check(of)
            return self._library.versions(limit, order, of)

    def digest(self) -> str:
        """sha256 of the search state: a replay of the file has the same."""
        with self._store.lock:
            return self._state.digest()

    def _scored(self, candidate: int) -> ScoredCandidate | None:
        return self._library.relative(candidate) if candidate else None

    def _check(self, candidate: int) -> None:
        if not 0 < candidate <= len(self._state.lineage):
            last = len(self._state.lineage)
            raise PopulationError(f"{self.path} has no candidate {candidate}: they are numbered 1 to {last}.")
