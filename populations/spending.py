"""What a run had spent by each of its verdicts: evaluations, dollars, hours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Spent:
    evaluations: int = 0
    dollars: float = 0.0


class SpendingCurve:
    """Told of everything that was paid, attempt by attempt, and of verdicts in their order.

    Calls, probes and turns have no place among the verdicts: an attempt's count once it or a later one is judged.
    """

    def __init__(self) -> None:
        self._all, self._by_now = _Spent(), _Spent()
        self._waiting: dict[int, _Spent] = {}  # of attempts beyond `_reached`
        self._reached = 0
        self._run, self._run_began, self._before_s, self._elapsed_s = 0, 0.0, 0.0, 0.0
        self.last_at: float | None = None  # Unix time of the latest verdict

    def spend(self, attempt: int, evaluations: int = 0, dollars: float = 0.0) -> None:
        places = [self._all]
        places.append(self._by_now if attempt <= self._reached else self._waiting.setdefault(attempt, _Spent()))
        for place in places:
            place.evaluations += evaluations
            place.dollars += dollars

    def judged(self, attempt: int, evaluations: int, run: int, run_began: float, at: float) -> None:
        """A verdict on an attempt's candidate; pauses between runs (sessions) do not count. Times in Unix time."""
        for number in range(self._reached + 1, attempt + 1) if self._waiting else ():
            if waiting := self._waiting.pop(number, None):
                self._by_now.evaluations += waiting.evaluations
                self._by_now.dollars += waiting.dollars
        self._reached = max(self._reached, attempt)
        self.spend(attempt, evaluations)
        if run != self._run:
            self._run, self._run_began, self._before_s = run, run_began, self._elapsed_s
        self._elapsed_s = max(self._elapsed_s, self._before_s + at - self._run_began)
        self.last_at = at

    def by_now(self) -> tuple[int, float, float]:
        """(evaluations, hours, dollars) up to the latest verdict."""
        return self._by_now.evaluations, self._elapsed_s / 3600, self._by_now.dollars

    def in_all(self) -> tuple[int, float, float]:
        """The same with what attempts under way have cost."""
        return self._all.evaluations, self._elapsed_s / 3600, self._all.dollars
