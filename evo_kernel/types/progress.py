"""What a run is doing now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineState:
    """What everything in flight was doing at one moment, and how busy the GPUs were until then."""

    at: float  # Unix time
    stages: Mapping[str, int]  # stage -> attempts at it, in the order of the way through the judge
    busy_recent: tuple[float, ...] = ()  # by GPU: share of the last `recent_s` in which a request was with it
    busy_session: tuple[float, ...] = ()  # the same, since the judge was opened
    recent_s: float = 0.0

    def age_s(self, now: float) -> float:
        """Seconds since it was true; `now` in Unix time."""
        return max(0.0, now - self.at)
