"""Caches references, shared by candidates: drawn inputs and expected outputs.

Sharing needs the same seeds for several evaluations. They come from a secret pool, and are replaced before the answers
reveal which values they draw. The cache is in host memory, where no candidate's kernel runs.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable

from evo_kernel.fitness.correctness.error_bounds import Expected
from evo_kernel.lru_cache import Recent

ANSWERS = 16
"""After so many answers about a case its seeds are drawn anew."""
_TOLD_BYTES = 64
"""More than the times of one answer can tell: a kernel may wait for as long as a part of its output says."""


class SeedPool:
    """Secret seeds by case and regime. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn: dict[tuple[str, str], int] = {}
        self._answers: Counter[str] = Counter()

    def seed(self, case: str, regime: str) -> int:
        """The seed of a case and regime, constant until `answered` replaces it."""
        with self._lock:
            return self._drawn.setdefault((case, regime), fresh_seed())

    def answered(self, case: str, shows_values: bool, timed_bytes: int | None = None) -> None:
        """Count an answer about a case. Replaces its seeds if values, errors or times could reveal inputs or outputs.

        `timed_bytes`: of the outputs, if the answer holds times; outputs of a kilobyte or more last for all ANSWERS.
        """
        answers = ANSWERS if timed_bytes is None else min(ANSWERS, timed_bytes // _TOLD_BYTES)
        with self._lock:
            self._answers[case] += 1
            if shows_values or self._answers[case] >= answers:
                del self._answers[case]
                self._drawn = {key: seed for key, seed in self._drawn.items() if key[0] != case}


def fresh_seed() -> int:
    return secrets.randbits(62)


class References:
    """Expected outputs by (case, seed, regime); the most recent within `limit_bytes` of host memory. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._lock = threading.Lock()
        self._kept: Recent[tuple[str, int, str], tuple[Expected, ...]] = Recent(limit_bytes, _size)
        self._making: dict[tuple[str, int, str], threading.Lock] = {}

    def of(self, case: str, seed: int, regime: str, make: Callable[[], tuple[Expected, ...]]) -> tuple[Expected, ...]:
        """The expected outputs, computed on the first call; concurrent callers wait."""
        key = (case, seed, regime)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                known = self._kept.get(key)
            expected = make() if known is None else known
            with self._lock:
                self._making.pop(key, None)
                return self._kept.put(key, expected)


def _size(parts: tuple[Expected, ...]) -> int:
    return sum(t.numel() * t.element_size() for p in parts for t in (p.truth, p.honest, p.compared))
