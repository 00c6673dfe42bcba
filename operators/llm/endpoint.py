"""Whether an endpoint is worth asking now: a circuit breaker, and the wait that a busy one asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Endpoint:
    """State of one endpoint, shared by everything that asks it. Thread-safe.

    Closed: all may ask. After `threshold` failures in a row it opens: nobody asks for `rest_s` seconds, twice as long
    after each failed try to come back, up to `longest_rest_s`. Then one call is let through as a probe; its success
    closes the circuit. A 429 is no such failure: who answers that is alive, but wants to be left alone for a while.
    """

    def __init__(
        self,
        name: str = "",
        threshold: int = 8,
        rest_s: float = 15.0,
        longest_rest_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self._threshold, self._clock = name, threshold, clock
        self._rest_s, self._longest_s = rest_s, longest_rest_s
        self._failures, self._opened = 0, 0  # in a row; how often it opened since it last worked
        self._open_until = self._quiet_until = 0.0
        self._is_open = self._probing = False
        self._lock = threading.Lock()

    def admit(self) -> float:
        """0 if the call may go ahead (then say how it went), else the seconds until asking again makes sense."""
        with self._lock:
            left = self._left()
            self._probing = self._probing or (self._is_open and not left)
            return left

    def resting_s(self) -> float:
        """Seconds for which nobody is let through; 0 when somebody would be. Unlike `admit`, changes nothing."""
        with self._lock:
            return self._left()

    def quiet_s(self) -> float:
        """Seconds for which the endpoint asked to be left alone."""
        with self._lock:
            return max(0.0, self._quiet_until - self._clock())

    def worked(self) -> None:
        """It answered, whatever it said."""
        self.busy(0.0)

    def busy(self, retry_after_s: float) -> None:
        with self._lock:
            self._quiet_until = max(self._quiet_until, self._clock() + retry_after_s)
            self._failures = self._opened = 0
            self._is_open = self._probing = False

    def failed(self) -> None:
        """No answer, or a 5xx."""
        with self._lock:
            self._failures += 1
            if self._probing or (not self._is_open and self._failures >= self._threshold):
                rest = min(self._rest_s * 2**self._opened, self._longest_s)
                self._open_until = self._clock() + rest
                self._opened += 1
                self._is_open, self._probing = True, False

    def gave_up(self) -> None:
        """A call that was admitted ended without asking (or its outcome says nothing about the endpoint)."""
        with self._lock:
            self._probing = False

    def _left(self) -> float:
        """Seconds until the circuit lets somebody through; the caller holds the lock."""
        left = self._open_until - self._clock()
        return max(left, 0.1) if self._is_open and (left > 0 or self._probing) else 0.0
