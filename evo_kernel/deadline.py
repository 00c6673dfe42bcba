"""Durations as people write them (90s, 1h30m), and deadlines that are handed down and may be brought forward."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from evo_kernel.errors import CutShort

LONGEST_S = 3600.0
"""That one recording, compile or check may be given: an hour."""


class Deadline:
    """Two moments. From the first on, nothing is begun that a verdict can do without (a tuner's next setting); at the
    second, what has no verdict yet is given up. Thread-safe, and safe in signal handlers: it takes no lock.
    """

    def __init__(self, at: float = math.inf, grace_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        """`at`: the first moment, on `clock`; the second is `grace_s` seconds later. Never, if left out."""
        self._clock = clock
        self._planned = at, at + grace_s
        self._forward = math.inf, math.inf

    def plan(self, at: float, grace_s: float) -> None:
        """Other moments than were planned so far; what was brought forward stays so."""
        self._planned = at, at + grace_s

    def bring_forward(self, grace_s: float) -> None:
        """The first moment is now, and the second at most `grace_s` seconds from now."""
        now = self._clock()
        self._forward = min(self._forward[0], now), min(self._forward[1], now + grace_s)

    @property
    def over(self) -> bool:
        """Whether nothing more is to be begun."""
        return not self.left_s

    @property
    def left_s(self) -> float:
        """Seconds to the first moment; 0 beyond it."""
        return max(0.0, min(self._planned[0], self._forward[0]) - self._clock())

    @property
    def passed(self) -> bool:
        """Whether the second moment is gone."""
        return self._clock() >= min(self._planned[1], self._forward[1])

    def check(self) -> None:
        """Raises CutShort where the second moment is gone."""
        if self.passed:
            raise CutShort("the time for it is up")


_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"\d+(?:\.\d+)?"
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in _UNITS))


def seconds_of(text: str) -> float:
    """Raises ValueError, with what to write, for anything else and for no time at all."""
    parts = _DURATION.fullmatch(text.strip())
    seconds = sum(float(number) * _UNITS[unit] for unit, number in parts.groupdict("0").items()) if parts else 0.0
    if seconds <= 0:
        raise ValueError(f"{text!r} is no duration; write it like 90s, 10m, 8h, 1h30m or 2d.")
    return seconds


def duration_text(seconds: float) -> str:
    """Its two largest units, rounded: 45s, 3m, 1h30m, 2d4h. `seconds_of` reads it."""
    left, parts = max(1, round(seconds)), []
    for unit, size in _UNITS.items():
        number, left = divmod(left, int(size))
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts[:2])
