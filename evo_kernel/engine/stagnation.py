"""Detects a search that finds nothing new any more, so that the loop can end it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from evo_kernel.budget import Spent

PATIENCE = 8  # attempts in a row that cost nothing, before waiting for a verdict that is under way


class Stagnation:
    """Counts attempts in a row that found nothing new. Thread-safe.

    An attempt that had nothing judged brought nothing new: it failed, or its plans were all known already. What was
    said to a model on the way is no news: one that always answers the same would keep a run going for ever.
    """

    def __init__(self, enough: int, stopped: threading.Event) -> None:
        """`enough` of them end the search; nobody waits for news any more once it is `stopped`."""
        self._enough, self._stopped = enough, stopped
        self._barren = 0
        self._under_way = 0  # attempts between their brief and their verdict
        self._at: Counter[str] = Counter()  # what is going on beside their thinking; see `at`
        self._told = threading.Condition()  # something was told: there may be new parents

    def begun(self) -> None:
        """An attempt that may bring news is under way, until it is `finished`."""
        with self._told:
            self._under_way += 1

    @contextlib.contextmanager
    def at(self, work: str) -> Iterator[None]:
        """While a new candidate is with the judge (`judging`), or more is found out about a kernel that is known
        (`known`)."""
        with self._told:
            self._at[work] += 1
        try:
            yield
        finally:
            with self._told:
                self._at[work] -= 1
                self._told.notify_all()

    def idle(self, wholly: bool = False) -> bool:
        """Whether no attempt is under way that may bring news; where one is, False after a moment's wait for it.

        `wholly`: nor anything else.
        """
        with self._told:
            if self._under_way or (wholly and self._at["known"]):
                self._told.wait(1.0)
                return False
            return True

    def finished(self, cost: Spent | None) -> int:
        """Count an attempt by what it cost (None: it was none). Returns how many were barren in a row where that is
        enough, else 0.

        While others are being judged there may soon be new parents: a few more tries, then wait for their verdicts.
        Where enough attempts were barren, those still under way have the last word, however long a model thinks.
        """
        with self._told:
            self._under_way -= 1
            news = cost is not None and (cost.evaluations > 0 or cost.gpu_seconds > 0)
            self._barren = 0 if news else self._barren + (cost is not None)
            if news or not self._under_way:  # those who wait for a verdict are not to be woken by others' failures
                self._told.notify_all()
            if cost is None:
                return 0
            if self._at["judging"]:
                if self._barren >= PATIENCE:
                    self._told.wait(1.0)
                return 0
            while self._barren >= self._enough and self._under_way and not self._stopped.is_set():
                self._told.wait(1.0)
            return self._barren if self._barren >= self._enough else 0
