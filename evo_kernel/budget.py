"""The ledger of a run and its limits. One place counts; everything asks it before an attempt starts.

Attempts in flight reserve what an attempt has cost on average so far, so that 32 of them at once pass a limit by no
more than what they themselves turn out to cost. What earlier sessions of a population spent is where the ledger
begins, so that nothing is counted twice after a resume.

Money is held more closely where calls of models are booked one by one (`by_call`): a call sets its worst case aside
before it is made, so that no number of calls in flight passes a limit in dollars or tokens, and an attempt need not
reserve any. What an attempt's calls were booked at is not booked again when the attempt is settled.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from evo_kernel.deadline import duration_text
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
MONEY = ("dollars", "tokens")


class Ledger:
    """What was spent against what may be. Thread-safe. `reserve` and `settle` come in pairs, in one thread, and so do
    `set_aside` and `book` within them.

    `by_call`: calls of models are booked as they are made. `ends_with_money`: whether a run is over when its dollars or
    tokens are; else they only keep calls from being made, and the run ends by another limit.
    """

    def __init__(
        self,
        budget: Budget,
        before: Spent | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        by_call: bool = False,
        ends_with_money: bool = True,
        began: float | None = None,
    ) -> None:
        """`began`: since when the session's time counts, on `clock`; now, if left out."""
        self._budget, self._before, self._now = budget, before or Spent(), Spent()
        self.clock, self._began = clock, clock() if began is None else began
        self._open = self._settled = 0
        self._closed = False
        self._by_call, self._ends_with_money = by_call, ends_with_money
        self._aside_dollars, self._aside_tokens, self._calls = 0.0, 0, 0  # of calls in flight
        self._refused = ""
        self._booked = threading.local()  # what this thread's attempt has had booked by its calls
        self._apart = 0
        self._changed = threading.Condition()

    def reserve(self) -> str:
        """Start an attempt: empty when there is room, else why there is none.

        Waits while only what is in flight stands in the way: it may turn out cheaper than expected.
        """
        with self._changed:
            while not (reached := self.reached()):
                if self.fits():
                    self._open += 1
                    self._booked.cost = Spent()
                    return ""
                self._changed.wait(timeout=1.0)  # hours pass without anybody settling
            return reached

    def settle(self, cost: Spent) -> None:
        """End an attempt: its reservation becomes what it really cost, less what its calls were booked at."""
        booked = getattr(self._booked, "cost", Spent())
        left = {name: max(0, getattr(cost, name) - getattr(booked, name)) for name in MONEY}
        self._booked.cost = Spent()
        with self._changed:
            self._open -= 1
            self._settled += 1
            self._now += replace(cost, **left)
            self._changed.notify_all()

    def set_aside(self, dollars: float | None, tokens: int, wait_s: float = 0.0) -> bool:
        """Keep a call's worst case; False when it does not fit. `dollars` None: its price is not known.

        Waits up to `wait_s` seconds while only other calls in flight stand in the way. A limit in dollars refuses a
        call whose price is not known.
        """
        until = time.monotonic() + wait_s
        with self._changed:
            while not self._affords(dollars, tokens, self._aside_dollars, self._aside_tokens):
                hopeless = not self._calls or not self._affords(dollars, tokens, 0.0, 0)
                if hopeless or not self._changed.wait(max(0.0, until - time.monotonic())):
                    return False
            self._calls += 1
            self._aside_dollars += dollars or 0.0
            self._aside_tokens += tokens
            return True

    def book(self, dollars: float | None, tokens: int, spent_dollars: float | None, spent_tokens: int) -> None:
        """What was set aside for a call (the first two, as then) becomes what the call cost."""
        cost = Spent(dollars=spent_dollars or 0.0, tokens=spent_tokens)
        self._booked.cost = getattr(self._booked, "cost", Spent()) + cost
        with self._changed:
            self._calls -= 1
            self._aside_dollars = self._aside_dollars - (dollars or 0.0) if self._calls else 0.0
            self._aside_tokens -= tokens
            self._now += cost
            self._changed.notify_all()

    def out_of_money(self, reason: str) -> None:
        """No call of a model can be made any more: its worst case does not fit, or every one is turned down."""
        with self._changed:
            self._refused = self._refused or reason
            self._changed.notify_all()

    def ending(self, wait_s: float = 0.0) -> bool:
        """Whether the run is over, or has become so within `wait_s` seconds."""
        until = time.monotonic() + wait_s
        with self._changed:
            while not self.reached():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 1.0))  # hours pass without a sign
            return True

    def charge(self, cost: Spent) -> None:
        """Book what no attempt reserved: a first kernel, a pending candidate, a confirmation, an agent's evaluation."""
        with self._changed:
            self._now += cost
            self._apart += cost.evaluations

    @property
    def charged_apart(self) -> int:
        """Evaluations of this session that `charge` has booked: an agent's own are among them."""
        return self._apart

    def close(self) -> None:
        """No more reservations; whoever waits for one is told."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def spent(self) -> Spent:
        """The sums so far, earlier sessions included."""
        with self._changed:
            return self._total()

    @property
    def left_s(self) -> float:
        """Seconds that are left of the limit in hours; infinite where there is none."""
        limit = self._budget.hours
        return math.inf if limit is None else max(0.0, 3600 * (limit - self.spent().hours))

    def left(self) -> dict[str, float]:
        """What is left of every limit that is set."""
        spent = self.spent()
        limits = {name: getattr(self._budget, name) for name in NAMES}
        return {name: limit - getattr(spent, name) for name, limit in limits.items() if limit is not None}

    def _total(self) -> Spent:
        return self._before + self._now + Spent(hours=(self.clock() - self._began) / 3600)

    def reached(self) -> str:
        """Which limit is reached, in words; empty while there is none."""
        if self._closed:
            return "the run was stopped"
        total = self._total()
        for name in NAMES:
            limit = getattr(self._budget, name)
            if name in MONEY and not self._ends_with_money:
                continue
            if limit is not None and getattr(total, name) >= limit:
                if name == "hours":
                    return self.time_is_spent
                return f"the budget of {limit:g} {name.replace('_', ' ')} is spent"
        return self._refused if self._ends_with_money else ""

    @property
    def time_is_spent(self) -> str:
        """That this session's share of the limit in hours is spent."""
        limit = self._budget.hours or 0.0
        earlier = self._before.hours if self._before.hours < limit else 0.0
        return f"the budget of {duration_text(3600 * (limit - earlier))} is spent"

    def _affords(self, dollars: float | None, tokens: int, aside_dollars: float, aside_tokens: int) -> bool:
        total, limit = self._total(), self._budget
        if limit.dollars is not None and (dollars is None or total.dollars + aside_dollars + dollars > limit.dollars):
            return False
        return limit.tokens is None or total.tokens + aside_tokens + tokens <= limit.tokens

    def fits(self) -> bool:
        """Whether one more attempt of average cost fits beside those in flight."""
        if not self._open:
            return True
        total = self._total()
        for name in NAMES:
            limit = getattr(self._budget, name)
            if limit is None or name == "hours":  # hours pass once, however many attempts share them
                continue
            if name in MONEY and self._by_call:  # every call asks for itself
                continue
            typical = getattr(self._now, name) / self._settled if self._settled else 0.0
            expected = max(1.0, typical) if name == "evaluations" else typical
            if getattr(total, name) + self._open * expected >= limit:
                return False
        return True
