"""The words of the house as frozen values, and the protocols at its seams. Standard library only.

Every value here is immutable and safe to hand between threads. Times are microseconds (`_us`) for kernels and
seconds (`_s`) for everything else; sizes are bytes.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable


class Status(enum.StrEnum):
    """The fate of a kernel. Only `PASSED` carries a score."""

    PASSED = "passed"
    REJECTED = "rejected"  # breaks a rule: reads values on the host, uses an operation that ALLOW forbids, ...
    BUILD_ERROR = "build_error"  # does not import, trace or compile
    RUNTIME_ERROR = "runtime_error"  # crashes while it runs
    WRONG = "wrong"  # computes something else
    TIMEOUT = "timeout"
    INFRA_ERROR = "infra_error"  # the machine's fault: retried, never scored
    REFUTED = "refuted"  # right, but no champion: fresh pairs do not show the gain. Of confirmations only


class Purpose(enum.StrEnum):
    """Why an evaluation was made, and what it is charged to."""

    PROBE = "probe"  # record + check on small cases, for an operator at work
    TUNE = "tune"  # one knob setting
    SCORE = "score"
    CONFIRM = "confirm"  # hidden cases, fresh seeds


class CaseKind(enum.StrEnum):
    CHECK = "check"  # small, any machine
    SEARCH = "search"  # steers evolution
    CONFIRM = "confirm"  # hidden from agents; judges champions


def content_hash(value: object) -> str:
    """sha256 of the canonical JSON of `value` (dataclasses welcome), hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=asdict)  # type: ignore[arg-type]
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Source:
    """The text of a kernel: one Python module with `run(*inputs)`."""

    text: str
    language: str = "triton"

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(f"{self.language}\0{self.text}".encode()).hexdigest()


Knobs = tuple[tuple[str, int], ...]
"""One setting of the knobs: sorted (name, value) pairs. A name is a module constant (`BLOCK_M`), or
`kernel.config` (an index into its autotune configurations), or `kernel.num_warps` / `kernel.num_stages`."""


@dataclass(frozen=True)
class Environment:
    """Where a score was made. Scores compare only inside one environment."""

    kind: str  # "measured" or "modeled"
    device: str  # "NVIDIA H200", or "sm_90" when modeled
    driver: str
    torch: str
    triton: str
    fp_fusion: bool
    judge: int  # version of the judge's method: raised whenever a change may move scores
    confinement: str  # which guards the recorder had: "namespaces+landlock+seccomp+rlimits", ..., "none"

    @cached_property
    def key(self) -> str:
        return content_hash(asdict(self))[:16]

    @property
    def label(self) -> str:
        """What every surface shows beside a number made here."""
        return f"{self.kind} ({self.device})"


@dataclass(frozen=True)
class KernelFeatures:
    """What one launch of a plan is made of: evidence for policies, archive cells and witnesses."""

    name: str
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    tensor_core: str  # "none" | "mma" | "wgmma"
    data_path: str  # "load" | "cp.async" | "tma"
    schedule: str  # "plain" | "pipelined" | "persistent" | "warp-specialised"
    instructions: Mapping[str, int]  # static counts by class: "ld.global", "st.global", "mufu", "fma", "hgmma", ...
    share: float = 0.0  # of the plan's time, modeled or measured; the dominant kernel has the largest


@dataclass(frozen=True)
class PlanFeatures:
    """What a plan is made of; `kernels` in launch order."""

    launches: int
    aten_nodes: int
    kernels: tuple[KernelFeatures, ...]
    scratch_bytes: int = 0  # of intermediate buffers: fusion makes it fall

    @property
    def dominant(self) -> KernelFeatures | None:
        """The kernel with the largest share of the plan's time."""
        return max(self.kernels, key=lambda kernel: kernel.share, default=None)

    @property
    def cell(self) -> tuple[str, str, str, int]:
        """Archive cell: tensor-core path, data path, schedule of the dominant kernel; launches 1, 2 or 3+."""
        kernel = self.dominant
        if kernel is None:
            return ("none", "load", "plain", min(self.launches, 3))
        return (kernel.tensor_core, kernel.data_path, kernel.schedule, min(max(self.launches, 1), 3))


@dataclass(frozen=True)
class Measurement:
    """The time of one plan on one case, and what it is held against."""

    case: str
    plan: str  # plan hash
    median_us: float
    iqr_us: float
    n: int  # samples; 0 when modeled
    low_us: float  # interval of the median (95 %); equal to the median when modeled
    high_us: float
    baselines_us: Mapping[str, float] = field(default_factory=dict)
    light_share: float | None = None  # share of the speed of light, where the task gives flops and bytes
    features: PlanFeatures | None = None
    details: Mapping[str, float] = field(default_factory=dict)  # e.g. modeled terms, temperature, sets of inputs
    clock_mhz: float | None = None  # of the SMs while it was timed; None where the card does not say, or modeled
    power_w: float | None = None
    drift: float | None = None  # of a fixed copy since the run began: 0.01 = everything takes 1 % longer by now

    @property
    def speedup(self) -> float:
        """Fastest listed baseline ÷ candidate."""
        return min(self.baselines_us.values()) / self.median_us if self.baselines_us else math.nan


@dataclass(frozen=True)
class CheckResult:
    """The verdict on one case: how far from the float64 reference, in units of what is allowed (1.0 = the limit)."""

    case: str
    passed: bool
    error: float  # worst ratio of error to its bound over seeds and regimes
    reason: str = ""


@dataclass(frozen=True)
class PlanVerdict:
    """What the judge found out about one plan on one case: the unit of reuse. A plan seen before costs nothing."""

    case: str
    plan: str  # plan hash
    status: Status
    reason: str = ""
    check: CheckResult | None = None
    measurement: Measurement | None = None


class Rival(enum.StrEnum):
    """What a would-be champion is timed against, side by side."""

    FIRST = "first kernel"  # the task's seed, or what lowering wrote
    CHAMPION = "champion"  # the one before it


SAME = "the same plan"
"""Verdict on a candidate whose plan is its rival's: nothing is timed."""


@dataclass(frozen=True)
class PairedComparison:
    """A candidate and a rival on one case, timed side by side on fresh inputs. Ratios are rival ÷ candidate."""

    case: str
    kind: CaseKind  # search or confirm
    against: Rival
    plan: str  # hash of the rival's plan
    ratio: float  # above 1, the candidate is faster
    low: float  # interval of the ratio (99 %, or stricter where it was clear early); equal to it when modeled
    high: float
    pairs: int  # 0 when modeled, and where the two could only be timed one after the other
    verdict: str  # of fitness/pairing.py, or SAME
    claimed: float | None = None  # the ratio that the search had measured, unpaired; None where it had not


@dataclass(frozen=True)
class Gain:
    """A ratio of times over several cases (geometric mean), with an interval that is wide rather than narrow."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f}x" + (f" ({self.low:.3f} to {self.high:.3f})" if self.low < self.high else "")


CLAIM_WORTH = 1.01
"""A claimed gain below this is none to speak of: of how much of it survived there is nothing to say."""


@dataclass(frozen=True)
class Evaluation:
    """The judge's verdict on one source in one environment for one purpose."""

    source: str  # sha256
    task: str  # task identity
    purpose: Purpose
    environment: Environment
    status: Status
    reason: str = ""  # one sentence a person can act on; empty when passed
    score: float | None = None  # geometric mean of speed-ups over search cases; None unless passed and timed
    knobs: Knobs = ()
    checks: tuple[CheckResult, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    plans: tuple[tuple[str, Knobs, str], ...] = ()  # (case, knobs, plan hash) of every plan seen
    verdicts: tuple[PlanVerdict, ...] = ()  # what was newly found out; what was reused is not repeated
    comparisons: tuple[PairedComparison, ...] = ()  # of confirmations
    charged: Mapping[str, int] = field(default_factory=dict)  # evaluations by purpose; cache hits are free
    gpu_s: float = 0.0
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        if self.score is not None and self.status is not Status.PASSED:
            raise ValueError(f"a score needs status passed, not {self.status}")
        if self.status is not Status.PASSED and not self.reason:
            raise ValueError(f"status {self.status} needs a reason")

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED

    @property
    def log_us(self) -> float:
        """Mean log time in µs over cases (log of the geometric mean); NaN when nothing was timed."""
        if not self.measurements:
            return math.nan
        return math.fsum(math.log(m.median_us) for m in self.measurements) / len(self.measurements)

    @property
    def features(self) -> PlanFeatures | None:
        """Features of the slowest measured case's plan."""
        slowest = max(self.measurements, key=lambda m: m.median_us, default=None)
        return slowest.features if slowest else None

    def gain_over(self, rival: Rival, kind: CaseKind) -> Gain | None:
        """By the pairs, over all cases of a kind; None where there were none."""
        found = self._compared(rival, kind)
        if not found:
            return None
        return Gain(*(_geometric_mean(getattr(one, name) for one in found) for name in ("ratio", "low", "high")))

    @property
    def claimed(self) -> float | None:
        """The gain over the first kernel on the search cases, as the search measured it; None where it did not."""
        found = [one.claimed for one in self._compared(Rival.FIRST, CaseKind.SEARCH)]
        claims = [claim for claim in found if claim is not None]
        return _geometric_mean(claims) if claims and len(claims) == len(found) else None

    @property
    def survived(self) -> float | None:
        """The share of the claimed log gain that fresh pairs still show: log(found) ÷ log(claimed). 1.0 is all of it;
        None where nothing to speak of was claimed."""
        claimed, found = self.claimed, self.gain_over(Rival.FIRST, CaseKind.SEARCH)
        if claimed is None or found is None or claimed < CLAIM_WORTH:
            return None
        return math.log(found.ratio) / math.log(claimed)

    @property
    def refutation(self) -> str:
        """Why it is no champion, by the pairs, in a sentence; empty where it stands."""
        first = self.gain_over(Rival.FIRST, CaseKind.SEARCH)
        itself = all(one.verdict == SAME for one in self._compared(Rival.FIRST, CaseKind.SEARCH))
        if first is not None and first.low <= 1.0 and not itself:
            return f"fresh pairs do not show it faster than the first kernel on the search cases: {first}"
        older = self.gain_over(Rival.CHAMPION, CaseKind.CONFIRM)
        if older is not None and older.high < 1.0:
            return f"fresh pairs show it slower than the champion on the confirm cases: {older}"
        return ""

    def _compared(self, rival: Rival, kind: CaseKind) -> list[PairedComparison]:
        return [one for one in self.comparisons if one.against is rival and one.kind is kind]


def _geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


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


@dataclass(frozen=True)
class CaseCard:
    """A case as agents see it."""

    name: str
    kind: CaseKind
    sizes: Mapping[str, Any]
    inputs: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()  # (dtype, shape, strides) per tensor input


@dataclass(frozen=True)
class TaskCard:
    """A task as agents see it: never the confirm cases, never the drawn inputs."""

    name: str
    reference: str  # source text of the task file
    allow: str  # "kernels" or "mixed"
    precision: str  # "ieee" | "tf32": what fp32 contractions may use
    atomics: bool  # whether two runs may differ in the last bits
    cases: tuple[CaseCard, ...]  # check and search
    description: str = ""


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
class Relative:
    """A candidate as an operator sees it."""

    candidate: int
    source: Source
    generation: int
    island: int
    evaluation: Evaluation | None
    strategies: tuple[Strategy, ...] = ()  # path from the root, oldest first


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
    parent: Relative
    inspirations: tuple[Relative, ...]
    tried: tuple[Tried, ...]
    island: int
    seed: tuple[int, ...]  # for numpy.random.default_rng: the same attempt draws the same numbers after a resume
    environment: Environment

    @property
    def generation(self) -> int:
        return self.parent.generation + 1


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


Probe = Callable[[Source], Evaluation]
"""Cheap evaluation for an operator at work: record + check on small cases, purpose PROBE."""


@runtime_checkable
class Operator(Protocol):
    """A variation operator. Thread-safe: `propose` runs in `width` threads at once."""

    name: str

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        """Think and edit. Raises OperatorFailed (and nothing else on purpose)."""
        ...

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        """Whether the plan shows that the claimed strategy really happened."""
        ...

    def learn(self, credit: Credit) -> None:
        """Take in what came of an earlier proposal. Called in the order of `tell`, and again by replay on resume."""
        ...


@runtime_checkable
class Resumes(Protocol):
    """An operator whose attempts outlive a session."""

    def holds(self, brief: Brief) -> bool:
        """Whether it has begun this attempt, and can go on with it."""
        ...


class Judge(Protocol):
    """Scores sources of one task. Thread-safe."""

    environment: Environment

    def evaluate(
        self, source: Source, purpose: Purpose, anew: bool = False, against: Source | None = None
    ) -> Evaluation:
        """Never raises for a broken kernel; raises InfraError when the machine failed beyond retries.

        `anew`: measure again, closely, what may be known already; the knobs are taken as they are.
        `against`: the champion that a confirmation is to be timed beside, its knobs written in. The evaluation tells
        what was found; whether its kernel stands is for who promotes it: `Evaluation.refutation`.
        """
        ...

    def close(self) -> None: ...


class Population(Protocol):
    """Memory of the search: the lineage. Thread-safe."""

    def ask(self) -> Brief: ...

    def record(self, brief: Brief, proposal: Proposal) -> Recorded: ...

    def tell(self, recorded: Recorded, evaluation: Evaluation, witnessed: bool = False) -> Sequence[Credit]: ...

    def fail(
        self, brief: Brief, operator: str, reason: str, proposal: Proposal | None = None, exhausted: bool = False
    ) -> None:
        """An attempt that ended without a candidate, with what it cost.

        `exhausted`: the brief's parent has nothing left to try; it is seldom chosen again in this session.
        """
        ...

    def pending(self) -> Sequence[Recorded]:
        """Candidates without a verdict in this environment, oldest first: judged before anything new."""
        ...

    def credits(self) -> Iterable[Credit]:
        """The latest credits (thousands), in the order of `tell`: how operators are rebuilt on resume."""
        ...

    def best(self) -> Relative | None: ...
