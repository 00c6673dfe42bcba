"""Tickets: what is handed out with an attempt, and what finds its way home; rebuilt from the file on resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evo_kernel.types import Brief, Environment, Recorded, ScoredCandidate, TaskCard
from populations.candidate_cache import Library
from populations.encoding import loads
from populations.row_decoders import fetch_proposal
from populations.search_state import SearchState
from populations.store import Store


@dataclass(frozen=True)
class Tickets:
    """Writes briefs. Not thread-safe: the population's lock guards it."""

    store: Store
    state: SearchState
    library: Library
    task: TaskCard
    environment: Environment

    def brief(self, attempt: int, parent: int, island: int, chosen: Sequence[int], seed: int) -> Brief:
        return Brief(
            attempt=attempt,
            task=self.task,
            parent=self.library.relative(parent),
            inspirations=tuple(self.library.relative(candidate) for candidate in chosen),
            tried=self.library.tried(parent),
            island=island,
            seed=(seed, attempt, 1),  # the last number keeps the operator's draws apart from the selection's
            environment=self.environment,
        )

    def root(self, attempt: int, candidate: int, seed: int) -> Brief:
        """A planted seed's ticket: it stands as its own parent, one generation before the first."""
        itself = ScoredCandidate(candidate, self.library.proposed_source(candidate), -1, 0, None)
        return Brief(attempt, self.task, itself, (), (), 0, (seed, attempt, 1), self.environment)

    def recorded(self, candidate: int) -> Recorded:
        """The ticket of a candidate that is durable, as it was handed out (what was tried since is in it too)."""
        proposal = fetch_proposal(self.store.connection, candidate)
        attempt = self.state.lineage.attempt[candidate]
        return Recorded(candidate, self.opened(attempt, candidate), proposal)

    def opened(self, attempt: int, root: int = 0) -> Brief:
        """An attempt's ticket, rebuilt; `root`: the candidate that was planted with it, if it was a plant."""
        sql = "SELECT a.parent, a.island, a.inspirations, r.seed FROM attempts a JOIN runs r ON r.id = a.run"
        row = self.store.connection.execute(f"{sql} WHERE a.id = ?", (attempt,)).fetchone()
        parent, island, chosen, seed = row
        if parent is None:
            return self.root(attempt, root, seed)
        return self.brief(attempt, parent, island, loads(chosen), seed)
