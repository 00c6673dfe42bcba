"""References that many candidates share: drawn inputs and what a correct kernel makes of them.

A per-run secret pool of seeds makes sharing possible; it is renewed by the hour, so that nothing can be learnt between
evaluations. What is kept lies in host memory: no candidate's kernel runs where a reference is.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from evo_kernel.fitness.correctness.error_bounds import Expected
from evo_kernel.lru_cache import Recent

RENEW_S = 3600.0


class SeedPool:
    """Secret seeds by case and regime, renewed by the hour. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._drawn: dict[tuple[str, str], int] = {}
        self._until = clock() + RENEW_S

    def seed(self, case: str, regime: str) -> int:
        """The same seed for the same case and regime within the hour."""
        with self._lock:
            if self._clock() >= self._until:
                self._drawn.clear()
                self._until = self._clock() + RENEW_S
            return self._drawn.setdefault((case, regime), fresh_seed())


def fresh_seed() -> int:
    return secrets.randbits(62)


class References:
    """Expected outputs by (case, seed, regime), the most recent within `limit_bytes` of host memory. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._lock = threading.Lock()
        self._kept: Recent[tuple[str, int, str], tuple[Expected, ...]] = Recent(limit_bytes, _size)
        self._making: dict[tuple[str, int, str], threading.Lock] = {}

    def of(self, case: str, seed: int, regime: str, make: Callable[[], tuple[Expected, ...]]) -> tuple[Expected, ...]:
        """What is expected; made and kept on the first call. Who asks meanwhile waits for it."""
        key = (case, seed, regime)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                known = self._kept.get(key)
            made = make() if known is None else known
            with self._lock:
                self._making.pop(key, None)
                return self._kept.put(key, made)


def _size(parts: tuple[Expected, ...]) -> int:
    return sum(t.numel() * t.element_size() for p in parts for t in (p.truth, p.honest, p.compared))
