"""How a session divides the time that was asked for: the search, its confirmation, and what it may go over by.

A run of T seconds ends within max(T / 10, 15 s) of T: a third of that is for verdicts under way when the search ends,
a third for a confirmation that takes longer than expected, a third for closing. What a confirmation takes is guessed
until there was one; where it took less, the search goes on, and what it finds is confirmed in its turn. The first
verdict has all of the time and two of the thirds: without one there is nothing to confirm.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from evo_kernel.deadline import Deadline

OVER_SHARE, OVER_S = 0.1, 15.0
KEPT_SHARE = 0.5
"""Of a session's time: where confirmation is likely to take more, the search has all of it, and `resume` confirms."""
VERDICTS = 3.0
"""So many verdicts take as long as a confirmation: hidden cases, more draws, pairs, a fresh process."""
LEAST_S = 5.0
"""What a confirmation is taken for at least until there was one."""


class TimeBudget:
    """The moments of one session. `took` is called under no lock: a lost count moves an estimate, nothing else."""

    def __init__(
        self, left_s: float = math.inf, confirmed_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`left_s`: seconds that the session may take, without limit if left out; `confirmed_s`: what a
        confirmation of this population took so far, if there was one."""
        self._clock, self._asked_s, self._ends = clock, left_s, clock() + left_s
        self._third_s = max(OVER_SHARE * left_s, OVER_S) / 3
        self.search = Deadline(self._ends, self._third_s, clock)  # of its verdicts, moved as more is known
        self._confirmed_s, self._verdicts_s, self._verdicts = confirmed_s or 0.0, 0.0, 0
        self._first_s = math.inf  # of the first verdict, beside which no other is made, as beside no confirmation
        self._plan()

    def took(self, seconds: float, *, confirming: bool) -> None:
        """A verdict's time."""
        if confirming:
            self._confirmed_s = max(seconds, self._confirmed_s)
        else:
            self._first_s = self._first_s if self._verdicts else seconds
            self._verdicts_s += seconds
            self._verdicts += 1
        self._plan()

    def _plan(self) -> None:
        late = self._third_s if self._verdicts else 2 * self._third_s
        self.search.plan(self._ends - self.kept_s, late)

    @property
    def _verdict_s(self) -> float:
        """What one takes alone: side by side they take longer, and a first one may measure what all others use."""
        return min(self._first_s, self._verdicts_s / max(1, self._verdicts))

    @property
    def expected_s(self) -> float:
        """What one confirmation is likely to take."""
        return self._confirmed_s or max(LEAST_S, VERDICTS * self._verdict_s)

    @property
    def kept_s(self) -> float:
        """What the search leaves of the time for the confirmation; 0 where time is not limited or does not suffice, and
        before the first verdict."""
        if not self._verdicts and not self._confirmed_s:
            return 0.0
        fits = self.expected_s <= KEPT_SHARE * self._asked_s < math.inf
        return self.expected_s if fits else 0.0

    def confirmation_fits(self) -> bool:
        """Whether one more may end in time. Until there was one, it is tried."""
        return self._clock() + self._confirmed_s < self._ends + 2 * self._third_s

    def leaves_more(self) -> bool:
        """Whether there was a confirmation, and it left time for a verdict and for another confirmation."""
        return self._confirmed_s > 0.0 and self.search.left_s > self._verdict_s

    def of_confirmation(self) -> Deadline:
        return Deadline(self._ends + 2 * self._third_s, clock=self._clock)
