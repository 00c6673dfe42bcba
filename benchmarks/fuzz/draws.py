"""Where a generator's choices come from: a seed, or Hypothesis, which can shrink them (live.py)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Draws(Protocol):
    """A source of choices. Smaller numbers and earlier items are simpler."""

    def integer(self, low: int, high: int) -> int:
        """One of low, ..., high."""
        ...


class Seeded:
    """Choices from a seed: the same on every machine and version of Python."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return low + int(self._random.random() * (high - low + 1))


def choice(draws: Draws, items: Sequence[T]) -> T:
    """One of the items, each as likely."""
    return items[draws.integer(0, len(items) - 1)]


def chance(draws: Draws, percent: int) -> bool:
    """True with this probability; False is simpler."""
    return draws.integer(0, 99) >= 100 - percent


def weighted(draws: Draws, items: Sequence[tuple[T, int]]) -> T:
    """One of the items, by weight."""
    at = draws.integer(0, sum(weight for _, weight in items) - 1)
    for item, weight in items:
        at -= weight
        if at < 0:
            return item
    raise AssertionError("weights are positive")
