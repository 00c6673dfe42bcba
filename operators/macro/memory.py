"""What strategies have earned in this population."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from evo_kernel.types import Credit, Strategy
from operators.macro.catalogue import CATALOGUE, UNGUIDED


@dataclass
class _Earned:
    """`log_gain`: sum over attempts; 0 for one that failed."""

    strategy: Strategy
    times: int = 0
    witnessed: int = 0
    log_gain: float = 0.0

    @property
    def mean(self) -> float:
        return self.log_gain / self.times

    def line(self) -> str:
        gain, name = (math.exp(self.mean) - 1) * 100, self.strategy.name
        # A strategy that was made up has no sign: "seen 0 times" would speak against it.
        seen = f", seen in the plan {_times(self.witnessed)}" if name in CATALOGUE else ""
        return f"- {name}: {_times(self.times)}{seen}, {gain:+.1f} % speed on average"


class StrategyMemory:
    """Thread-safe. Several policies may share one: a candidate counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._earned: dict[str, _Earned] = {}
        self._counted: set[int] = set()

    def learn(self, credit: Credit) -> None:
        if credit.decision is None or credit.depth != 0 or not math.isfinite(credit.log_gain):
            return
        strategy = credit.decision.offered[credit.decision.chosen]
        with self._lock:
            if credit.candidate in self._counted or strategy.name == UNGUIDED.name:
                return
            self._counted.add(credit.candidate)
            earned = self._earned.setdefault(strategy.name, _Earned(strategy))
            earned.times += 1
            earned.witnessed += credit.witnessed
            earned.log_gain += credit.log_gain

    def own(self, most: int) -> list[Strategy]:
        """Strategies that policies of this population made up, those that earned most first."""
        with self._lock:
            made_up = [earned for name, earned in self._earned.items() if name not in CATALOGUE]
        return [earned.strategy for earned in sorted(made_up, key=lambda earned: -earned.mean)[:most]]

    def paid(self) -> list[str]:
        """A line a strategy, those that moved most first."""
        with self._lock:
            return [earned.line() for earned in sorted(self._earned.values(), key=lambda earned: -abs(earned.mean))]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
