"""The population: ask for a brief, record a proposal, tell the verdict.

Each act is one short transaction; the search state in memory changes only after its rows are committed, so what this
process knows is always what a replay of the file would know. All methods are thread-safe.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from evo_kernel.errors import PopulationError
from evo_kernel.types import Brief, Call, Credit, Environment, Evaluation, Proposal, Purpose, Recorded, Source, TaskCard
from populations import statistics
from populations.agent_log import AgentLog, open_attempts
from populations.archive import PopulationSettings
from populations.external_tickets import HandedOut, fetch_ticket
from populations.open_population import OpenPopulation, SessionStart, last_id
from populations.parent_selection import Choice, Chooser, Mix
from populations.statistics import SearchTotals
from populations.store import Store
from populations.writing import (
    hold_attempt,
    summarise,
    write_calls,
    write_candidate,
    write_evaluation,
    write_failure,
    write_proposal,
)

REASONS = 8
"""Of a stretch of attempts that left nothing: so many reasons are kept, the most frequent ones."""


def open_population(
    path: str | os.PathLike[str],
    *,
    task: TaskCard,
    task_identity: str,
    environment: Environment,
    seed: int,
    settings: PopulationSettings | None = None,
    run: Mapping[str, Any] | None = None,
    create: bool | None = None,
) -> LineagePopulation:
    """Open a population to search on, and begin a session in it.

    `run` is the validated run configuration as plain data. `create`: True refuses an existing file, False a missing
    one, None takes what it finds. Raises PopulationLocked while another live process writes the file, and
    PopulationError when the file is something else, or holds another task.
    """
    file = Path(path)
    if create is True and file.exists():
        raise PopulationError(f"{file} exists already. Go on with `evo-kernel resume {file}`, or name another file.")
    if create is False and not file.is_file():
        raise PopulationError(f"There is no population at {file}. `evo-kernel run TASK --population {file}` makes one.")
    if not file.parent.is_dir():
        raise PopulationError(f"The folder {file.parent} does not exist. Make it, or name another --population.")
    store = Store(file)
    try:
        start = SessionStart(task, task_identity, environment, seed, settings or PopulationSettings(), run or {})
        return LineagePopulation(store, start)
    except BaseException:
        store.close()
        raise


class LineagePopulation(OpenPopulation):
    """An open population and its search state. Implements evo_kernel.types.Population."""

    def __init__(self, store: Store, start: SessionStart) -> None:
        mix = Mix(start.settings.selectors)
        super().__init__(store, start)
        self._chooser = Chooser(self.path, self._state.lineage, self._board, self._library, mix)
        self._attempts = last_id(store.connection, "attempts")
        self._confirmations: dict[str, tuple[Evaluation, int | None]] = {}  # of committed sources, by sha256
        self._said: Counter[str] = Counter()  # reasons of attempts that left nothing, since the last that did
        self._resumable = deque(open_attempts(store.connection))
        self.diary = AgentLog(store)

    def plant(self, source: Source, operator: str = "seed") -> Recorded:
        """A root candidate. Planting a source again returns the root that it already is."""
        with self._store.lock:
            rowid = self._store.row("SELECT id FROM sources WHERE sha256 = ?", (source.sha256,))
            for root in self._state.lineage.roots:
                if rowid is not None and self._state.lineage.source[root] == rowid[0]:
                    return self._recorded(root)
            proposal = Proposal(source=source, operator=operator)
            attempt = self._attempts + 1
            hold_attempt(self._store, attempt, self._run, None, 0, "plant", ())
            with self._store.write():
                self._store.release(attempt)
                rowid = write_candidate(self._store, len(self._state.lineage) + 1, attempt, proposal, None, 0, 0)
                write_proposal(self._store, attempt, proposal)
            candidate = self._state.lineage.add(attempt, rowid, 0, 0, 0, 0)
            self._attempts = attempt
            return Recorded(candidate, self._root(attempt, candidate, self.seed), proposal)

    def ask(self, holder: str | None = None, expires_at: float | None = None, parent: int | None = None) -> Brief:
        """Select a parent and inspirations, open an attempt. Raises PopulationError while nothing is planted.

        `parent`: this one, alone. Raises PopulationError where there is none.

        `holder`: somebody outside, whose ticket stays good when this process ends (external_tickets.py), until
        `expires_at` (Unix time) if given. For nobody outside, before anything new: the conversations that an earlier
        session left in the middle.
        """
        with self._store.lock:
            if self._resumable and holder is None and parent is None:
                return self._brief(*self._resumable.popleft(), self.seed)
            attempt = self._attempts + 1
            if parent is not None and not 0 < parent <= (count := len(self._state.lineage)):
                raise PopulationError(f"{self.path}: there is no candidate {parent}, but 1 to {count}")
            chosen = (
                Choice(parent, 0, "asked", ())
                if parent is not None
                else self._chooser.choose(np.random.default_rng([self.seed, attempt]))
            )
            parent, island, shown = chosen.parent, chosen.island, chosen.inspirations
            hold_attempt(self._store, attempt, self._run, parent, island, chosen.selector, shown)
            if holder is not None:
                with self._store.write() as connection:
                    self._store.release(attempt)
                    ticket = (attempt, holder, expires_at, time.time())
                    connection.execute("INSERT INTO tickets VALUES (?, ?, ?, ?)", ticket)
            self._attempts = attempt
            return self._brief(attempt, parent, island, shown, self.seed)

    def ticket(self, attempt: int) -> tuple[Brief, HandedOut]:
        """An attempt that is in somebody's hands, as it was handed out (what was tried since is in it too), and what
        became of it. Raises PopulationError when it was not handed out."""
        with self._store.lock:
            handed = fetch_ticket(self._store.connection, attempt)
            return self._opened(attempt), handed

    def record(self, brief: Brief, proposal: Proposal) -> Recorded:
        """Make the proposal durable as a candidate, before anything judges it."""
        explicit = proposal.parents
        parents = explicit or (("parent", brief.parent.candidate),)
        with self._store.lock:
            lineage = self._state.lineage
            for _, candidate in parents:
                if not 0 < candidate <= len(lineage):
                    raise ValueError(f"proposal names candidate {candidate} as a parent, but there is none of this id")
            parent = next((candidate for role, candidate in parents if role == "parent"), parents[0][1])
            generation = lineage.generation[parent] + 1
            self._tell_no_proposals()
            with self._store.write():
                self._store.release(brief.attempt)
                strategy = self._store.intern_strategy(proposal.strategy)
                born = (len(lineage) + 1, brief.attempt, proposal, parent, brief.island, generation)
                source = write_candidate(self._store, *born)
                write_proposal(self._store, brief.attempt, proposal, parents)
            candidate = lineage.add(brief.attempt, source, strategy or 0, parent, brief.island, generation)
            return Recorded(candidate, brief, proposal)

    def tell(self, recorded: Recorded, evaluation: Evaluation, witnessed: bool = False) -> Sequence[Credit]:
        """Store a verdict, give credit, update archive and islands. A candidate may be told again (re-measured,
        confirmed); its strategy is credited once."""
        proposal = recorded.proposal
        if evaluation.source != proposal.source.sha256:
            raise ValueError(f"candidate {recorded.candidate} has another source than evaluation {evaluation.source}")
        if evaluation.task != self.task_identity:
            raise ValueError(f"this population holds task {self.task_identity}, the evaluation is of {evaluation.task}")
        with self._store.lock:
            credits = self._tell(recorded, evaluation, witnessed)
            if (confirmation := self._kept_confirmation(evaluation)) is not None:
                self._tell(recorded, confirmation, witnessed=False)
            return credits

    def keep_confirmation(self, confirmation: Evaluation, rival: int | None) -> None:
        """A confirmation, passed, of a source that is about to be committed: told with the candidate's own verdict, so
        that nobody confirms it again. `rival`: the candidate that it was timed beside. What it has cost and found out
        about plans is booked already.
        """
        with self._store.lock:
            booked = replace(confirmation, verdicts=(), charged={}, gpu_s=0.0)
            self._confirmations[confirmation.source] = (booked, rival)

    def _kept_confirmation(self, evaluation: Evaluation) -> Evaluation | None:
        """One of the same source, knobs and environment; None where the champion by now is not who it was timed beside.
        The population's lock is held."""
        if evaluation.purpose is not Purpose.SCORE:
            return None
        kept, rival = self._confirmations.pop(evaluation.source, (None, None))
        if kept is None or not evaluation.passed or self._board.champion() not in (0, rival):
            return None
        same = (kept.knobs, kept.environment.key) == (evaluation.knobs, evaluation.environment.key)
        return kept if same else None

    def _tell(self, recorded: Recorded, evaluation: Evaluation, witnessed: bool) -> Sequence[Credit]:
        """One verdict, in a transaction of its own. The population's lock is held."""
        verdict = summarise(evaluation, recorded.candidate, recorded.proposal.probes, witnessed)
        with self._store.write() as connection:
            source = self._state.lineage.source[recorded.candidate]
            number = write_evaluation(self._store, evaluation, verdict, self._run, source)
            # The state changes inside the transaction because placements are its outcome: whatever could raise
            # (values, constraints, a full disk) has been written by now, and a failing COMMIT ends the process.
            earned, placements = self._state.tell(evaluation.environment.key, verdict)
            connection.executemany(
                "INSERT INTO placements (evaluation, candidate, island, cell) VALUES (?, ?, ?, ?)",
                ((number, *placement) for placement in placements),
            )
        self._library.told(recorded.candidate, evaluation)
        return self._library.credits(earned)

    def fail(
        self, brief: Brief, operator: str, reason: str, proposal: Proposal | None = None, exhausted: bool = False
    ) -> None:
        with self._store.lock:
            if exhausted:
                self._chooser.exhausted.add(brief.parent.candidate)
            thought = proposal and (proposal.decisions or proposal.steps or proposal.calls or proposal.probes)
            if not thought and self._store.let_go(brief.attempt):
                self._said[reason] += 1
                return
            self._tell_no_proposals()
            with self._store.write():
                self._store.release(brief.attempt)
                write_failure(self._store, brief.attempt, operator, reason, brief.parent.candidate, proposal)
                if proposal:
                    write_proposal(self._store, brief.attempt, proposal)

    def counters(self) -> SearchTotals:
        """What was done and spent over all sessions."""
        with self._store.lock:
            found: dict[str, Any] = asdict(statistics.totals(self._store.connection))
            left_nothing = self._said.total()
            found["failures"] += left_nothing
            found["attempts"] += left_nothing + len(self._store.held)
            wall_s, best = self.earlier_wall_s + time.time() - self._began, self._board.score(self._board.best())
            known: dict[str, Any] = {"candidates": len(self._state.lineage), "passed": self._board.passed}
            return SearchTotals(**found, **known, wall_s=wall_s, best_score=best)

    def close(self) -> None:
        with self._store.lock:
            self._tell_no_proposals()
            with self._store.write():
                for attempt in sorted(self._store.held):  # cut off
                    self._store.release(attempt)
        super().close()

    def _tell_no_proposals(self) -> None:
        """One event for a stretch of attempts that left nothing."""
        if self._said:
            reasons = dict(self._said.most_common(REASONS))
            self.event(statistics.NO_PROPOSAL, {"count": self._said.total(), "reasons": reasons})
            self._said.clear()

    def dry(self) -> bool:
        """Whether every parent is exhausted, by itself and crossed with every elite."""
        with self._store.lock:
            return self._chooser.dry()

    def spend(self, attempt: int, calls: Sequence[Call]) -> None:
        """Calls of an attempt that is under way, durable at once: what a killed process had spent stays counted.

        They come home with the proposal again, and are known by then.
        """
        if calls:
            with self._store.write() as connection:
                self._store.release(attempt)
                write_calls(connection, attempt, calls)
