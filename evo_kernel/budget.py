"""The ledger of a run and its limits. One place counts; everything asks it before an attempt starts.

Attempts in flight reserve what an attempt has cost on average so far, so that 32 of them at once pass a limit by no
more than what they themselves turn out to cost. What earlier sessions of a population spent is where the ledger
begins, so that nothing is counted twice after a resume.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from evo_kernel.types import Evaluation, Proposal


@dataclass(frozen=True)
class Budget:
    """Limits over all sessions of a population; None means no limit."""

    evaluations: int | None = None  # charged ones: plans that reach a check; cache hits are free
    hours: float | None = None
    dollars: float | None = None
    tokens: int | None = None
    gpu_seconds: float | None = None


@dataclass(frozen=True)
class Spent:
    """What a population has cost so far, over all its runs."""

    evaluations: int = 0
    hours: float = 0.0
    dollars: float = 0.0
    tokens: int = 0
    gpu_seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, name) + getattr(other, name) for name in NAMES))

    @staticmethod
    def of(proposal: Proposal | None = None, *evaluations: Evaluation) -> Spent:
        """What a proposal's calls and some evaluations cost."""
        calls = proposal.calls if proposal is not None else ()
        return Spent(
            evaluations=sum(sum(evaluation.charged.values()) for evaluation in evaluations),
            dollars=sum(call.dollars or 0.0 for call in calls),
            tokens=sum(call.tokens_in + call.tokens_out for call in calls),
            gpu_seconds=sum(evaluation.gpu_s for evaluation in evaluations),
        )


NAMES = tuple(field.name for field in fields(Spent))


class Ledger:
    """What was spent against what may be. Thread-safe. `reserve` and `settle` come in pairs."""

    def __init__(
        self, budget: Budget, before: Spent | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._budget, self._before, self._now = budget, before or Spent(), Spent()
        self._clock, self._began = clock, clock()
        self._open = self._settled = 0
        self._closed = False
        self._changed = threading.Condition()

    def reserve(self) -> str:
        """Start an attempt: empty when there is room, else why there is none.

        Waits while only what is in flight stands in the way: it may turn out cheaper than expected.
        """
        with self._changed:
            while not (reached := self._reached()):
                if self._fits():
                    self._open += 1
                    return ""
                self._changed.wait(timeout=1.0)  # hours pass without anybody settling
            return reached

    def settle(self, cost: Spent) -> None:
        """End an attempt: its reservation becomes what it really cost."""
        with self._changed:
            self._open -= 1
            self._settled += 1
            self._now += cost
            self._changed.notify_all()

    def charge(self, cost: Spent) -> None:
        """Book what no attempt reserved: a first kernel, a pending candidate, a confirmation."""
        with self._changed:
            self._now += cost

    def close(self) -> None:
        """No more reservations; whoever waits for one is told."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def spent(self) -> Spent:
        """The sums so far, earlier sessions included."""
        with self._changed:
            return self._total()

    def left(self) -> dict[str, float]:
        """What is left of every limit that is set."""
        spent = self.spent()
        limits = {name: getattr(self._budget, name) for name in NAMES}
        return {name: limit - getattr(spent, name) for name, limit in limits.items() if limit is not None}

    def _total(self) -> Spent:
        return self._before + self._now + Spent(hours=(self._clock() - self._began) / 3600)

    def _reached(self) -> str:
        if self._closed:
            return "the run was stopped"
        total = self._total()
        for name in NAMES:
            limit = getattr(self._budget, name)
            if limit is not None and getattr(total, name) >= limit:
                return f"the budget of {limit:g} {name.replace('_', ' ')} is spent"
        return ""

    def _fits(self) -> bool:
        """Whether one more attempt of average cost fits beside those in flight."""
        if not self._open:
            return True
        total = self._total()
        for name in NAMES:
            limit = getattr(self._budget, name)
            if limit is None or name == "hours":  # hours pass once, however many attempts share them
                continue
            typical = getattr(self._now, name) / self._settled if self._settled else 0.0
            expected = max(1.0, typical) if name == "evaluations" else typical
            if getattr(total, name) + self._open * expected >= limit:
                return False
        return True
