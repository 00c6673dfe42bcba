"""What agents are shown of a population, and what they leave in it: versions, notes, evidence."""

from __future__ import annotations

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
