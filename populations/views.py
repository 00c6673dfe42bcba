"""What a reader of a population is shown: frozen values, as they stood when they were read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evo_kernel.knobs import apply_knobs
from evo_kernel.types import Environment, Evaluation, PipelineState, Proposal, Source


@dataclass(frozen=True)
class SessionView:
    """One time that the population was open for a search."""

    number: int
    seed: int
    environment: Environment
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    pid: int
    host: str
    began: float  # Unix time


@dataclass(frozen=True)
class CandidateView:
    """A candidate with everything that the file knows of it."""

    candidate: int
    attempt: int
    island: int
    generation: int
    parent: int | None
    proposal: Proposal  # source, operator, strategy, decisions, steps, calls
    evaluations: tuple[Evaluation, ...]  # of all purposes and environments, oldest first
    children: tuple[int, ...]
    at: float  # Unix time when it was recorded
    shown: str  # key of the environment that numbers are shown in

    @property
    def evaluation(self) -> Evaluation | None:
        """The latest score in the environment shown, as standings go by; the latest anywhere where there is none."""
        scores = [one for one in reversed(self.evaluations) if one.purpose == "score"]
        return max(
            scores, key=lambda one: (one.environment.key == self.shown, one.status != "infra_error"), default=None
        )

    @property
    def source(self) -> Source:
        """As it was scored (`evaluation`), the knobs written in; as it was proposed it is in `proposal`."""
        knobs = self.evaluation.knobs if self.evaluation is not None else ()
        return apply_knobs(self.proposal.source, knobs)


@dataclass(frozen=True)
class ModelUse:
    """What was asked of one language model, over all sessions; tries that failed are calls too."""

    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    tokens_cached: int  # of tokens_in, read from the provider's cache
    dollars: float  # of calls whose price is known
    unpriced: int  # calls whose price is not
    errors: int  # calls that brought no usable answer
    wall_s: float  # summed over calls, which overlap

    @property
    def cached_share(self) -> float:
        return self.tokens_cached / self.tokens_in if self.tokens_in else 0.0


@dataclass(frozen=True)
class OperatorUse:
    """What came of one operator's attempts."""

    operator: str
    attempts: int  # those that ended
    candidates: int
    passed: int  # in the environment shown
    dollars: float
    best_score: float | None
    by_rules: int  # candidates of attempts in which no language model answered


@dataclass(frozen=True)
class Best:
    """The fastest candidate of an environment."""

    candidate: int
    score: float | None
    confirmed: bool
    claimed: float | None = None  # of what is confirmed: the gain over the first kernel that the search had measured,
    survived: float | None = None  # and the share of it that the confirmation still found
    hidden: float | None = None  # the gain over the first kernel on hidden cases


@dataclass(frozen=True)
class CaseTime:
    """A candidate's time on one case beside the least that bandwidth and arithmetic allow; None where not known."""

    us: float
    floor_us: float | None
    light_share: float | None


@dataclass(frozen=True)
class RunStatus:
    """A population in numbers; `as_data` is what `status --json` prints."""

    path: str
    task: str
    task_identity: str
    environment: Environment | None
    sessions: int
    attempts: int
    open_attempts: int  # under way, while a writer lives
    abandoned: int  # opened by a session that ended before they did
    handed_out: int  # in the hands of somebody outside, and good
    failures: int  # attempts that ended without a candidate
    candidates: int
    pending: int  # candidates without a verdict
    verdicts: Mapping[str, int]  # scores by status
    evaluations: Mapping[str, int]  # charged, by purpose
    gpu_s: float
    wall_s: float
    dollars: float
    tokens: int
    best: Best | None  # the fastest that no confirmation refuted
    champion: Best | None  # the fastest that was confirmed
    writer: tuple[int, str] | None  # (pid, host) of the live process that writes the file
    pipeline: PipelineState | None  # what that process said last of what it is doing; see its age
    ceilings: Mapping[str, float]  # of this environment's machine, by name with unit; empty where none were measured
    baselines: Mapping[str, Mapping[str, float]]  # µs by case and name
    baseline_faults: Mapping[str, Mapping[str, str]]  # why a baseline has no time, by case and name
    times: Mapping[str, CaseTime]  # of the leader, by case
    models: tuple[ModelUse, ...] = ()  # language models, those that were asked most first
    operators: tuple[OperatorUse, ...] = ()  # by name

    @property
    def leader(self) -> Best | None:
        """The champion; the best while nothing is confirmed."""
        return self.champion or self.best

    def as_data(self) -> dict[str, Any]:
        data = asdict(self)
        data["environment"] = None
        if self.environment is not None:
            data["environment"] = {**asdict(self.environment), "label": self.environment.label}
        for one, use in zip(data["models"], self.models, strict=True):
            one["cached_share"] = use.cached_share
        data["writer"] = {"pid": self.writer[0], "host": self.writer[1]} if self.writer else None
        if self.pipeline is not None:
            data["pipeline"]["age_s"] = self.pipeline.age_s(time.time())
        return data


@dataclass(frozen=True)
class CellView:
    """A cell of the archive, over all islands."""

    name: str  # tensor-core path / data path / schedule / launches
    candidates: int  # that passed and lie in it
    elite: int  # the fastest of the islands' elites
    score: float | None
