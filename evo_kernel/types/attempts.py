"""Attempts: the brief of an operator, its proposal with decisions, steps and model calls, and credit."""

from __future__ import annotations

from dataclasses import dataclass

from evo_kernel.types.evaluations import Environment, Evaluation, Status
from evo_kernel.types.kernels import Knobs, Source
from evo_kernel.types.tasks import TaskCard


@dataclass(frozen=True)
class Strategy:
    """One semantic optimisation of the structure, at one place: an action of macro thinking."""

    name: str  # catalogue name, e.g. "online-softmax"
    family: str  # tiling | fusion | pipeline | reordering | memory | launch | algorithm | repair
    region: str = ""  # e.g. "kernel softmax_kernel, loop over BLOCK at line 12"
    parameters: tuple[tuple[str, str | int], ...] = ()

    @property
    def key(self) -> str:
        tail = ",".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.name}@{self.region}" + (f"({tail})" if tail else "")


@dataclass(frozen=True)
class Decision:
    """What a policy was offered, with what probability it chose, and what it chose.

    `calls`: what deciding cost, on its way to the attempt that it is charged to; never stored with the decision.
    """

    policy: str
    offered: tuple[Strategy, ...]
    probabilities: tuple[float, ...]  # propensities, sum 1
    chosen: int  # index into offered
    context: tuple[float, ...] = ()  # features that the policy saw
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Step:
    """One edit of micro coding and its outcome: kept, repaired, or rolled back."""

    action: str
    outcome: str  # "kept" | "repaired" | "rolled back"
    detail: str = ""
    wall_s: float = 0.0


@dataclass(frozen=True)
class Call:
    """One call of a language model."""

    model: str
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    dollars: float | None = None  # None: the price is not known
    wall_s: float = 0.0
    error: str = ""
    messages: str = ""


@dataclass(frozen=True)
class ScoredCandidate:
    """A candidate as an operator sees it.

    A child that fell back to untuned knobs would look slower than its parent whatever its structure is worth: so
    `source` has the knobs written in that it was scored with. As it was proposed it is in `Recorded.proposal`.
    """

    candidate: int
    source: Source
    generation: int
    island: int
    evaluation: Evaluation | None
    strategies: tuple[Strategy, ...] = ()  # path from the root, oldest first

    @property
    def knobs(self) -> Knobs:
        """The setting that it was scored with; empty where it was not judged, or its own was best."""
        return self.evaluation.knobs if self.evaluation is not None else ()


@dataclass(frozen=True)
class Tried:
    """A strategy that was already tried on a parent, and what came of it."""

    strategy: Strategy
    status: Status | None  # None: not judged
    log_gain: float | None


@dataclass(frozen=True)
class Brief:
    """The ticket: what an operator is given, and all that its result needs to find its way home."""

    attempt: int
    task: TaskCard
    parent: ScoredCandidate
    inspirations: tuple[ScoredCandidate, ...]
    tried: tuple[Tried, ...]
    island: int
    seed: tuple[int, ...]  # for numpy.random.default_rng: the same attempt draws the same numbers after a resume
    environment: Environment

    @property
    def generation(self) -> int:
        return self.parent.generation + 1

    @property
    def known_sources(self) -> dict[str, int]:
        """sha256 → candidate of every source in the brief, as it was scored and as it was proposed."""
        shown = (*self.inspirations, self.parent)
        proposed = {one.evaluation.source: one.candidate for one in shown if one.evaluation is not None}
        return proposed | {one.source.sha256: one.candidate for one in shown}


@dataclass(frozen=True)
class Proposal:
    """What an operator gives back."""

    source: Source
    operator: str
    strategy: Strategy | None = None
    parents: tuple[tuple[str, int], ...] = ()  # (role, candidate); the brief's parent if empty
    decisions: tuple[Decision, ...] = ()
    steps: tuple[Step, ...] = ()
    calls: tuple[Call, ...] = ()
    probes: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Recorded:
    """A candidate that is durable: proof that `record` came before the judge."""

    candidate: int
    brief: Brief
    proposal: Proposal


@dataclass(frozen=True)
class Credit:
    """What a candidate's strategy earned, for whoever learns from it (policies, mixes, reports)."""

    attempt: int
    candidate: int
    operator: str
    strategy: str  # "other" when the witness is missing
    witnessed: bool
    reward: float  # log gain, cost-adjusted, see populations/credit.py
    log_gain: float  # log(parent ÷ child); 0 for a child that failed
    depth: int  # 0: the child itself; 1-3: a descendant's share
    decision: Decision | None = None
