"""The search state: all that `ask` and `tell` decide on, in memory. Resume is replay of the file, in the order of ids.

Texts and evaluations stay in the file. The live process and replay call the same two methods, `add` of the lineage and
`tell`, so that one equals the other. Not thread-safe: the population's lock guards it.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import deque

from populations.credit import Earned
from populations.encoding import loads
from populations.islands import Placement
from populations.leaderboard import Leaderboard, Lineage, TakenVerdict
from populations.settings import PopulationSettings

CANDIDATES = (
    "SELECT c.attempt, c.source, IFNULL(c.strategy, 0), IFNULL(c.parent, 0), c.island, c.generation"
    " FROM candidates c WHERE c.id > ? ORDER BY c.id"
)
EVALUATIONS = (
    "SELECT e.id, n.key, e.candidate, e.purpose, e.status, e.score, e.log_us, e.log_variance, e.light_share, e.cell,"
    " e.plan_key, e.cost, e.fresh, e.witnessed"
    " FROM evaluations e JOIN environments n ON n.id = e.environment WHERE e.id > ? AND e.id <= ? ORDER BY e.id"
)
FOREVER = 2**62
CREDITS_KEPT = 5000
"""Credits from which operators are rebuilt on resume. A policy that forgets half of what it saw in 140 credits, as the
bandit does by default, has forgotten all but 1e-10 of what came before these."""


class SearchState:
    """The lineage, and a board for every environment that judged something."""

    def __init__(self) -> None:
        self.lineage = Lineage()
        self.boards: dict[str, Leaderboard] = {}
        self.earned: deque[Earned] = deque(maxlen=CREDITS_KEPT)
        self._settings = PopulationSettings()

    def configure(self, settings: PopulationSettings) -> None:
        """A session begins under these settings."""
        self._settings = settings
        for board in self.boards.values():
            board.islands.settings = settings

    def board(self, environment: str) -> Leaderboard:
        """Standings in the environment of this key, new if it never judged anything."""
        found = self.boards.get(environment)
        if found is None:
            found = self.boards[environment] = Leaderboard(self._settings)
        return found

    def tell(self, environment: str, verdict: TakenVerdict) -> tuple[list[Earned], tuple[Placement, ...]]:
        """A verdict in the environment of this key: what it earned, and where its candidate went."""
        earned, placements = self.board(environment).tell(self.lineage, verdict)
        self.earned.extend(earned)
        return earned, placements

    def digest(self) -> str:
        """sha256 of everything here: equal digests mean equal search states."""
        boards = {
            key: board.digest_state(len(self.lineage.parent)) for key, board in self.boards.items() if any(board.status)
        }
        return hashlib.sha256(repr((self.lineage.state(), sorted(boards.items()))).encode()).hexdigest()


class Replay:
    """The search state of a file, and what was written since. For one thread; `advance` inside a transaction, where
    somebody may be writing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.state = SearchState()
        self._connection = connection
        self._evaluation = 0  # the last one that was told

    def advance(self) -> None:
        """Take in new rows. Each session's verdicts are told under that session's settings.

        All candidates come before the first verdict: what `tell` decides does not depend on candidates recorded later.
        """
        state, connection = self.state, self._connection
        for row in connection.execute(CANDIDATES, (len(state.lineage),)):
            state.lineage.add(*row)
        sessions = connection.execute("SELECT after_evaluation, settings FROM runs ORDER BY id").fetchall()
        ends = [after for after, _ in sessions[1:]] + [FOREVER]
        for (after, settings), until in zip(sessions, ends, strict=False):
            if until > self._evaluation:
                state.configure(PopulationSettings.from_data(loads(settings)))
                rows = connection.execute(EVALUATIONS, (max(after, self._evaluation), until))
                for self._evaluation, environment, *verdict in rows:
                    state.tell(environment, TakenVerdict._make(verdict))


def replay(connection: sqlite3.Connection) -> SearchState:
    """What the last process had in memory when it told the last evaluation."""
    replayed = Replay(connection)
    replayed.advance()
    return replayed.state
