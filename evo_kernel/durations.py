"""Durations as people write them: 90s, 10m, 8h, 1h30m, 2d."""

from __future__ import annotations

import re

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
