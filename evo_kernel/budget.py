"""The ledger of a run and its limits. One place counts; everything asks it before an attempt starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

from evo_kernel.types import Evaluation, Proposal


@dataclass(frozen=True)
class Budget:
    """Limits of a run; None means no limit. Evaluations as in the words: one plan set that reaches *check*."""

    evaluations: int | None = None
    hours: float | None = None
    dollars: float | None = None
    tokens: int | None = None
    gpu_seconds: float | None = None


@dataclass
class Spent:
    """What a population has cost so far, over all its runs."""

    evaluations: int = 0
    hours: float = 0.0
    dollars: float = 0.0
    tokens: int = 0
    gpu_seconds: float = 0.0


class Ledger:
    """What was spent against what may be. Thread-safe.

    An attempt reserves one evaluation when it starts, so that `width` attempts in flight cannot run past the limit
    by more than what a single attempt turns out to cost.
    """

    def __init__(
        self, budget: Budget, before: Spent | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._budget, self._clock = budget, clock
        self._spent = before or Spent()
        self._hours_before = self._spent.hours
        self._began = clock()
        self._reserved = 0
        self._lock = threading.Lock()

    def reserve(self) -> str:
        """Start an attempt: empty when there is room, else which limit is reached."""
        with self._lock:
            reached = self._reached()
            if not reached:
                self._reserved += 1
            return reached

    def settle(self, proposal: Proposal | None, evaluation: Evaluation | None) -> None:
        """End an attempt: its reservation becomes what it really cost."""
        with self._lock:
            self._reserved -= 1
            self._add(proposal, evaluation)

    def charge(self, evaluation: Evaluation) -> None:
        """Book an evaluation that no attempt reserved: a first kernel, a pending candidate, a confirmation."""
        with self._lock:
            self._add(None, evaluation)

    def spent(self) -> Spent:
        """A copy of the sums so far."""
        with self._lock:
            self._spent.hours = self._hours()
            return Spent(**asdict(self._spent))

    def left(self) -> dict[str, float]:
        """What is left of every limit that is set."""
        spent = self.spent()
        return {
            field.name: getattr(self._budget, field.name) - getattr(spent, field.name)
            for field in fields(Budget)
            if getattr(self._budget, field.name) is not None
        }

    def _add(self, proposal: Proposal | None, evaluation: Evaluation | None) -> None:
        if evaluation is not None:
            self._spent.evaluations += sum(evaluation.charged.values())
            self._spent.gpu_seconds += evaluation.gpu_s
        for call in proposal.calls if proposal is not None else ():
            self._spent.dollars += call.dollars or 0.0
            self._spent.tokens += call.tokens_in + call.tokens_out

    def _hours(self) -> float:
        return self._hours_before + (self._clock() - self._began) / 3600

    def _reached(self) -> str:
        budget, spent = self._budget, self._spent
        checks: list[tuple[str, float | None, float]] = [
            ("evaluations", budget.evaluations, spent.evaluations + self._reserved),
            ("hours", budget.hours, self._hours()),
            ("dollars", budget.dollars, spent.dollars),
            ("tokens", budget.tokens, spent.tokens),
            ("gpu_seconds", budget.gpu_seconds, spent.gpu_seconds),
        ]
        for name, limit, used in checks:
            if limit is not None and used >= limit:
                return f"the budget of {limit:g} {name.replace('_', ' ')} is spent"
        return ""
