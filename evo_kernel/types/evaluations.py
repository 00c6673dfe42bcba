"""Evaluations: status, checks, times and features of a judged kernel, and the environment of the judge."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

from evo_kernel.types.comparisons import CLAIM_WORTH, Gain, PairedComparison, Rival, geometric_mean
from evo_kernel.types.gpus import label_of
from evo_kernel.types.kernels import Knobs, PlanFeatures, content_hash
from evo_kernel.types.tasks import CaseKind


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
    assembler: str = ""  # version of ptxas; "" in what was judged before it was told

    @cached_property
    def key(self) -> str:
        told = asdict(self)
        if not self.assembler:
            del told["assembler"]
        return content_hash(told)[:16]

    @property
    def label(self) -> str:
        """What every surface shows beside a number made here."""
        return label_of(self.kind, self.device)


DRIFT = 0.003
"""Standard deviation of log time between evaluations on one GPU (A/A stays within 0.5 % at the 99th percentile)."""
SURE_DEVIATIONS = 1.645
"""95 % of a normal distribution lie below its mean plus so many standard deviations."""
Z95 = 1.96
"""95 % of a normal distribution lie within so many standard deviations of its mean."""


@dataclass(frozen=True)
class Compared:
    """How the outputs of a timed plan were compared with the float64 reference."""

    error: float  # as a multiple of what is allowed
    elements: int  # of outputs, that were compared
    of: int  # elements that the outputs have
    whole: bool  # all programs were executed; else some were drawn

    def as_details(self) -> dict[str, float]:
        """For `Measurement.details`."""
        return {f"{COMPARED}{name}": float(value) for name, value in asdict(self).items()}

    @classmethod
    def from_details(cls, details: Mapping[str, float]) -> Compared | None:
        """Inverse of `as_details`; None where nothing was compared."""
        found = {name: details.get(f"{COMPARED}{name}") for name in ("error", "elements", "of", "whole")}
        error, elements, of, whole = found.values()
        if error is None or elements is None or of is None or whole is None:
            return None
        return cls(error, int(elements), int(of), bool(whole))


COMPARED = "compared."
"""What the names of `Compared` begin with in `Measurement.details`."""


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
    light_share: float | None = None  # floor ÷ time, where bytes or flops are known
    features: PlanFeatures | None = None
    details: Mapping[str, float] = field(default_factory=dict)  # e.g. modeled terms, temperature, what was compared
    clock_mhz: float | None = None  # of the SMs while it was timed; None where the card does not say, or modeled
    power_w: float | None = None
    drift: float | None = None  # of a fixed copy since the run began: 0.01 = everything takes 1 % longer by now

    def __post_init__(self) -> None:
        times = {"median_us": self.median_us, "low_us": self.low_us, "high_us": self.high_us, **self.baselines_us}
        for name, value in times.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{self.case}: {name} is {value}: a time is finite and positive")
        rest = {name: getattr(self, name) for name in ("iqr_us", "light_share", "drift", "clock_mhz", "power_w")}
        for name, value in (rest | dict(self.details)).items():
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{self.case}: {name} is {value}, which is no finite number")

    @property
    def log_deviation(self) -> float:
        """Standard deviation of the log time, from the interval (95 %); 0 where that is of no width, or none."""
        known = self.high_us >= self.low_us > 0
        return (math.log(self.high_us) - math.log(self.low_us)) / (2.0 * Z95) if known else 0.0

    @property
    def speedup(self) -> float:
        """Fastest listed baseline ÷ candidate; NaN where there is none."""
        return min(self.baselines_us.values()) / self.median_us if self.baselines_us else math.nan

    @property
    def compared(self) -> Compared | None:
        """None where it was timed without a comparison."""
        return Compared.from_details(self.details)

    @property
    def floor_us(self) -> float | None:
        """The least time that bandwidth and arithmetic allow; None where it is not known."""
        return None if self.light_share is None else self.light_share * self.median_us


_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """Text of others, such as a candidate's exception, with what commands a terminal written out: it could clear a
    verdict and print another one. Half characters (surrogates), which no file takes, are written out too."""
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


@dataclass(frozen=True)
class CheckResult:
    """The verdict on one case: how far from the float64 reference, in units of what is allowed (1.0 = the limit)."""

    case: str
    passed: bool
    error: float  # the worst over seeds and regimes, as a multiple of what is allowed
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", escaped(self.reason))


@dataclass(frozen=True)
class PlanVerdict:
    """What the judge found out about one plan on one case: the unit of reuse. A plan seen before costs nothing."""

    case: str
    plan: str  # plan hash
    status: Status
    reason: str = ""
    check: CheckResult | None = None
    measurement: Measurement | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", escaped(self.reason))


@dataclass(frozen=True)
class Evaluation:
    """The judge's verdict on one source in one environment for one purpose."""

    source: str  # sha256
    task: str  # task identity
    purpose: Purpose
    environment: Environment
    status: Status
    reason: str = ""  # one sentence a person can act on; empty when passed
    score: float | None = (
        None  # geometric mean of speed-ups over search cases; None unless passed, with times and baselines
    )
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
        object.__setattr__(self, "reason", escaped(self.reason))
        if self.score is not None and self.status is not Status.PASSED:
            raise ValueError(f"a score needs status passed, not {self.status}")
        if self.score is not None and not (math.isfinite(self.score) and self.score > 0):
            raise ValueError(f"the score is {self.score}: a score is finite and positive")
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
    def standing(self) -> float:
        """What kernels rank by, least first: mean log time in µs; of a judge that only scores, by its score."""
        if self.passed and self.measurements:
            return self.log_us
        return -math.log(self.score) if self.score is not None else math.inf

    @property
    def features(self) -> PlanFeatures | None:
        """Features of the slowest measured case's plan."""
        slowest = max(self.measurements, key=lambda m: m.median_us, default=None)
        return slowest.features if slowest else None

    def gain_over(self, rival: Rival, kind: CaseKind) -> Gain | None:
        """By the pairs, over all cases of a kind; None where there were none."""
        found = self.compared(rival, kind)
        if not found:
            return None
        return Gain(*(geometric_mean(getattr(one, name) for one in found) for name in ("ratio", "low", "high")))

    @property
    def claimed(self) -> float | None:
        """The gain over the first kernel on the search cases, as the search measured it; None where it did not."""
        found = [one.claimed for one in self.compared(Rival.FIRST, CaseKind.SEARCH)]
        claims = [claim for claim in found if claim is not None]
        return geometric_mean(claims) if claims and len(claims) == len(found) else None

    @property
    def survived(self) -> float | None:
        """The share of the claimed log gain that fresh pairs still show: log(found) ÷ log(claimed). 1.0 is all of it;
        None where nothing to speak of was claimed, and of modeled times: the same model says the same again."""
        if self.environment.kind == "modeled":
            return None
        claimed, found = self.claimed, self.gain_over(Rival.FIRST, CaseKind.SEARCH)
        if claimed is None or found is None or claimed < CLAIM_WORTH:
            return None
        return math.log(found.ratio) / math.log(claimed)

    def compared(self, rival: Rival, kind: CaseKind) -> list[PairedComparison]:
        """What was timed side by side with a rival, on the cases of a kind."""
        return [one for one in self.comparisons if one.against is rival and one.kind is kind]
