"""Money before the call: its worst case is set aside first, so that no number of calls in flight can overspend."""

from __future__ import annotations

import threading
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
