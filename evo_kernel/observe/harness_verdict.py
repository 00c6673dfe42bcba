"""What a benchmark's own harness ("stock") says of a kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CORRECT, WRONG, NONE = "correct", "wrong", "no verdict"


@dataclass(frozen=True)
class Stock:
    """What a benchmark's own harness says of the kernel that was found. Times are its own, in µs."""

    verdict: str  # CORRECT, WRONG, or NONE: the harness could not tell, and `reason` says why
    reason: str = ""
    kernel: str = ""  # sha256 of the source that it was asked about
    sizes: str = "own"  # "own", or "small": what is executed on a CPU
    us: float | None = None
    eager_us: float | None = None
    tf32_us: float | None = None  # eager, with TF32 allowed
    timed: int = 0  # trials
    scaled: Mapping[str, bool] = field(default_factory=dict)  # factor of the inputs -> correct
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def correct(self) -> bool:
        return self.verdict == CORRECT

    @property
    def verified(self) -> bool:
        """Correct with the inputs as they are and at every factor."""
        return self.correct and bool(self.scaled) and all(self.scaled.values())

    @property
    def speedup(self) -> float | None:
        """Eager ÷ kernel; of a kernel that the harness calls correct."""
        return self.eager_us / self.us if self.correct and self.us and self.eager_us else None

    @property
    def verified_speedup(self) -> float | None:
        """Eager in TF32 ÷ kernel; of a kernel that is correct at every factor."""
        return self.tf32_us / self.us if self.verified and self.us and self.tf32_us else None


def stock_of(data: Mapping[str, Any]) -> Stock:
    """A stock result from JSON. Raises TypeError, ValueError, KeyError for what is none: a child wrote it."""
    if data["verdict"] not in (CORRECT, WRONG, NONE):
        raise ValueError(f"unknown verdict {data['verdict']!r}")
    times = {name: _time(data.get(name)) for name in ("us", "eager_us", "tf32_us")}
    return Stock(
        verdict=data["verdict"],
        reason=str(data.get("reason", "")),
        kernel=str(data.get("kernel", "")),
        sizes=str(data.get("sizes", "own")),
        timed=int(data.get("timed", 0)),
        scaled={str(name): bool(value) for name, value in dict(data.get("scaled", {})).items()},
        notes=tuple(map(str, data.get("notes", ()))),
        seconds=float(data.get("seconds", 0.0)),
        **times,
    )


def _time(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) and float(value) > 0 else None
