"""The search state: all that `ask` and `tell` decide on, in memory, rebuilt by replaying the file.

Texts and evaluations stay in the file. The live process and replay call the same two methods, `add` of the lineage and
`tell`, so that one equals the other. Not thread-safe: the population's lock guards it.
"""

from __future__ import annotations

import hashlib
from collections import deque

from populations.credit import Earned
from populations.islands import Placement
from populations.leaderboard import Leaderboard, Lineage, TakenVerdict
from populations.settings import PopulationSettings

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
