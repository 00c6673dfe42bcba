"""Versions, notes with evidence, and the pipeline state of a run, as lists and views show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

VersionOrder = Literal["newest", "best", "path"]


@dataclass(frozen=True)
class Version:
    """A committed version (a candidate) in a list, as it stands in one environment."""

    number: int  # candidate
    parent: int | None
    operator: str
    strategy: str  # "" where none is claimed
    status: str  # "" until it is judged
    score: float | None
    log_gain: float | None  # log(parent ÷ this); None where one of the two has no time


@dataclass(frozen=True)
class Evidence:
    """What a note rests on: an evaluation of this attempt (`E12.3`) or of a version (`C17`), as it was found."""

    evaluation: str
    samples: int  # the fewest of any case; 0 where times are modeled, or nothing was timed
    status: str
    score: float | None = None


@dataclass(frozen=True)
class Note:
    """What an agent wants later ones to know. `refuted`: why it no longer stands; empty while it does."""

    number: int
    text: str
    author: str
    attempt: int | None
    evidence: tuple[Evidence, ...]
    refuted: str = ""


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
