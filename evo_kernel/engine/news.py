"""Whether a search still finds anything new: what ends one that has tried all that it can think of."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from evo_kernel.budget import Spent

PATIENCE = 8  # attempts in a row that cost nothing, before waiting for a verdict that is under way


class News:
    """Counts attempts in a row that found nothing new. Thread-safe.

    An attempt that had nothing judged brought nothing new: it failed, or its plans were all known already. What was
    said to a model on the way is no news: one that always answers the same would keep a run going for ever.
    """

    def __init__(self, enough: int, stopped: threading.Event) -> None:
        """`enough` of them end the search; nobody waits for news any more once it is `stopped`."""
        self._enough, self._stopped = enough, stopped
        self._barren = 0
        self._under_way = 0  # attempts between their brief and their verdict
        self._known = 0  # of work on kernels that are known
        self._judging = 0  # of these: those whose candidate is with the judge
        self._told = threading.Condition()  # something was told: there may be new parents

    @contextlib.contextmanager
    def attempt(self, new: bool = True) -> Iterator[None]:
        """While an attempt is under way; `new` False: while more is found out about a kernel that is known."""
        with self._told:
            self._under_way += new
            self._known += not new
        try:
            yield
        finally:
            with self._told:
                self._under_way -= new
                self._known -= not new
                if not self._under_way:  # those who wait for a verdict are not to be woken by others' failures
                    self._told.notify_all()

    def judged(self, judge: Callable[[], Spent]) -> Spent:
        """Judge a new candidate; attempts that find nothing to try wait for such a verdict (`barren`)."""
        cost = Spent()
        with self._told:
            self._judging += 1
        try:
            cost = judge()
        finally:
            with self._told:
                self._judging -= 1
                if _found_out(cost):
                    self._barren = 0
                self._told.notify_all()
        return cost

    def idle(self, wholly: bool = False) -> bool:
        """Whether no attempt is under way that may bring news; where one is, False after a moment's wait for it.

        `wholly`: nor anything else.
        """
        with self._told:
            if self._under_way or (wholly and self._known):
                self._told.wait(1.0)
                return False
            return True

    def barren(self, cost: Spent) -> int:
        """Count an attempt by what it cost. Returns how many were barren in a row where that is enough, else 0.

        While others are being judged there may soon be new parents: a few more tries, then wait for their verdicts.
        Where enough attempts were barren, those still under way have the last word, however long a model thinks.
        """
        with self._told:
            self._barren = 0 if _found_out(cost) else self._barren + 1
            if self._judging:
                if self._barren >= PATIENCE:
                    self._barren = PATIENCE  # what comes of the others is not known yet
                    self._told.wait(1.0)
                return 0
            while self._barren >= self._enough and self._under_way and not self._stopped.is_set():
                self._told.wait(1.0)
            return self._barren if self._barren >= self._enough else 0


def _found_out(cost: Spent) -> bool:
    """Whether something new was judged."""
    return cost.evaluations > 0 or cost.gpu_seconds > 0
