"""Limits of calls: their worst case is reserved before they are made, and a failing endpoint is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Price:
    """Dollars a token. `cached`: of the prompt, read from the provider's cache; as `read` where None."""

    read: float
    write: float
    cached: float | None = None
    worst_read: float | None = None  # of the dearest prompt token (cache writes, long contexts); as `read` where None

    def dollars(self, tokens_in: int, tokens_out: int, tokens_cached: int = 0) -> float:
        cached = self.read if self.cached is None else self.cached
        return (tokens_in - tokens_cached) * self.read + tokens_cached * cached + tokens_out * self.write

    def worst(self, tokens_in: int, tokens_out: int) -> float:
        """An upper bound for that many tokens."""
        return tokens_in * max(self.read, self.worst_read or 0.0) + tokens_out * self.write


class Purse(Protocol):
    """Who says whether a call may be made. Thread-safe. Each successful `set_aside` is followed by one `book`."""

    def set_aside(self, dollars: float | None, tokens: int, wait_s: float = 0.0) -> bool:
        """Set aside a call's worst case; False when it does not fit. `dollars` None: the price is not known.

        May wait up to `wait_s` while only other reservations stand in the way: they may turn out cheaper.
        """
        ...

    def book(self, dollars: float | None, tokens: int, spent_dollars: float | None, spent_tokens: int) -> None:
        """Replace a reservation (the first two as reserved) by what the call really cost."""
        ...


class NoLimit:
    def set_aside(self, dollars: float | None, tokens: int, wait_s: float = 0.0) -> bool:
        return True

    def book(self, dollars: float | None, tokens: int, spent_dollars: float | None, spent_tokens: int) -> None:
        pass


class TokenBound:
    """How many tokens a prompt can be at most, from its bytes. Thread-safe.

    No tokenizer makes more tokens than bytes, so that is the bound until this model's own counts are known; then it is
    the densest prompt seen so far, with a margin. (Counting exactly needs each provider's own tokenizer.)
    """

    ENOUGH, MARGIN, A_MESSAGE = 8, 1.5, 16  # prompts; factor; tokens that frame a message

    def __init__(self) -> None:
        self._seen, self._densest = 0, 0.0
        self._lock = threading.Lock()

    def tokens(self, size: int, messages: int) -> int:
        """Upper bound for a prompt of `size` bytes in so many messages."""
        with self._lock:
            ratio = min(1.0, self.MARGIN * self._densest) if self._seen >= self.ENOUGH else 1.0
        return int(size * ratio) + self.A_MESSAGE * messages + 64

    def learn(self, size: int, messages: int, tokens: int) -> None:
        """A provider counted `tokens` for such a prompt."""
        if tokens <= 0 or size <= 0:
            return  # not all say
        with self._lock:
            self._seen += 1
            self._densest = max(self._densest, max(0, tokens - self.A_MESSAGE * messages) / size)


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
