"""What an onlooker is shown of a whole run: frozen values, as they stood when they were read."""

from __future__ import annotations

from dataclasses import dataclass

from evo_kernel.types import Environment


@dataclass(frozen=True)
class Rise:
    """A score that beat all before it, and what had been spent by then."""

    candidate: int
    score: float
    log_us: float
    action: str  # the strategy's name; the operator where none is claimed
    evaluations: int  # charged, with everything before it
    hours: float  # of sessions, pauses between them left out
    dollars: float  # of calls whose price is known, in attempts up to this one


@dataclass(frozen=True)
class EarnedView:
    """What came of the attempts of one operator, strategy, model or island. Gains as they were first measured."""

    name: str
    candidates: int  # judged
    failures: int  # attempts without a candidate
    passed: int
    gained: int  # faster than their parent
    rises: int  # the best so far, when they were judged
    mean_log_gain: float | None  # over those that passed and whose parent has a time; log(parent ÷ child)
    best_log_gain: float | None
    dollars: float


@dataclass(frozen=True)
class CellView:
    """A cell of the archive, over all islands."""

    name: str  # tensor-core path / data path / schedule / launches
    candidates: int  # whose score was told here
    elite: int  # the fastest of the islands' elites
    score: float | None


@dataclass(frozen=True)
class Overview:
    """A whole run in the environment of its latest score."""

    environment: Environment | None
    attempts: int
    candidates: int
    failures: int
    evaluations: int  # charged, all purposes
    hours: float
    dollars: float
    tokens: int
    gpu_s: float
    verdicts: dict[str, int]  # latest status -> candidates
    best: int | None  # the fastest that no confirmation refuted
    champion: int | None  # the fastest confirmed
    scores: dict[int, float | None]  # of best and champion
    rises: tuple[Rise, ...]
    cells: tuple[CellView, ...]
    latest: tuple[int, ...]  # candidates judged last, newest first
    last_at: float | None  # Unix time of the latest verdict
    operators: tuple[EarnedView, ...] = ()
    strategies: tuple[EarnedView, ...] = ()
    models: tuple[EarnedView, ...] = ()
    islands: tuple[EarnedView, ...] = ()
