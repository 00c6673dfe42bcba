"""Interface of runners, which execute, check and time launch plans."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from evo_kernel.fitness.compile.assembler import triton_version
from evo_kernel.fitness.ir.nodes import FP_FUSION
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.profiling.counters import CounterReading, CountPart
from evo_kernel.fitness.stages import Stages
from evo_kernel.fitness.timing.estimates import JUDGE_VERSION, Comparison
from evo_kernel.tasks.task import Case
from evo_kernel.types import Compared, Environment, Measurement, Status

Round = tuple[int, str]
"""(seed, regime): one set of inputs; see correctness/regimes.py."""
Draw = tuple[Case, int, str]
"""(case, seed, regime)."""


@dataclass(frozen=True)
class Checked:
    """Verdict of one plan on one case. `error` is relative to the allowed error: 1.0 is the limit."""

    status: Status
    reason: str = ""
    error: float = 0.0
    compared: Compared | None = None  # of plans of real size that passed

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED


@dataclass(frozen=True)
class CheckPart:
    """Request to check one plan on one case."""

    plan: CompiledPlan
    case: Case
    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class TimePart:
    """Request to time one plan on one case."""

    plan: CompiledPlan
    case: Case
    seed: int
    checked: bool = True  # compare outputs of timed launches; off while tuning, where only the winner is checked
    against_us: float | None = None  # a time to beat: sampling stops once it is clear which is faster


@dataclass(frozen=True)
class PlanSetRequest:
    """All checks and timings of one plan set. Checks come first; the first failure ends the request."""

    checks: tuple[CheckPart, ...] = ()
    timings: tuple[TimePart, ...] = ()
    precision: str = "search"  # or "claim", for published times


@dataclass(frozen=True)
class PlanSetAnswer:
    """Answers in the order of the request's parts, up to the first failure.

    None: lost when a later part killed the process.
    """

    checks: tuple[Checked | None, ...] = ()
    timings: tuple[Measurement | Checked | None, ...] = ()

    @property
    def fault(self) -> Checked | None:
        """The failure that ended the request, or None."""
        parts = [*self.checks, *self.timings]
        return next((part for part in parts if isinstance(part, Checked) and not part.passed), None)


IN_FULL_S = 30.0
"""For executing all of a plan without a GPU, where nothing is searched."""


class Runner(ABC):
    """Executes plans, checks them and times them. Thread-safe.

    A broken kernel is an answer; InfraError is raised if the machine failed.
    """

    arch: int
    stages: Stages  # counts threads that wait for the GPU or use it

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def environment(self, confinement: str) -> Environment: ...

    @abstractmethod
    def prepare_references(self, draws: Sequence[Draw]) -> None:
        """Compute the references of the first request while its kernel is recorded.

        Errors are ignored: they will recur.
        """

    @abstractmethod
    def answer(self, request: PlanSetRequest) -> PlanSetAnswer: ...

    @abstractmethod
    def pair(self, incumbent: CompiledPlan, challenger: CompiledPlan, case: Case, seed: int) -> Comparison | Checked:
        """Whether the challenger is faster, by paired samples. The same plan twice is an A/A test."""

    @abstractmethod
    def fresh(self) -> AbstractContextManager[Runner]:
        """A new runner for the calling thread: a new process, empty caches, and on a GPU a new context.

        Nothing else runs on that GPU meanwhile, so do slow preparations before.
        """

    @abstractmethod
    def counters(self, parts: Sequence[CountPart]) -> CounterReading:
        """Hardware counters of the plans' launches. Nothing else runs on that GPU meanwhile."""

    @property
    def card(self) -> str:
        """Identifies the GPU among others of its model; known after `start`."""
        return ""

    @property
    def is_free(self) -> bool:
        """Whether no other runner uses the GPU, in any process of this user."""
        return True

    @property
    def busy_s(self) -> float:
        """Seconds of GPU time used by the calling thread's requests."""
        return 0.0

    def baselines(self, case: Case) -> Mapping[str, float]:
        """Median µs of the task's baselines; empty if they cannot be timed, then the first kernel is the baseline."""
        return {}

    @property
    def baseline_faults(self) -> Mapping[str, str]:
        """Why a baseline has no time, by `case: name`."""
        return {}

    def ceilings(self) -> Mapping[str, float]:
        """Ceilings of this GPU, as `Ceilings.as_data`; empty without a GPU. Measured once."""
        return {}

    def check(self, plan: CompiledPlan, case: Case, rounds: Sequence[Round]) -> Checked:
        answer_part = self.answer(PlanSetRequest(checks=(CheckPart(plan, case, tuple(rounds)),))).checks[0]
        assert answer_part is not None, "a single part has an answer"
        return answer_part

    def check_in_full(self, plan: CompiledPlan, case: Case, whole_s: float) -> Checked | None:
        """Compare all outputs of a case of any size with the reference, on nominal values.

        None if executing the plan without a GPU would take longer than `whole_s`.
        """
        return self.check(plan, case, [(secrets.randbits(62), "nominal")])

    def measure(
        self,
        plan: CompiledPlan,
        case: Case,
        seed: int,
        checked: bool = True,
        against_us: float | None = None,
        precision: str = "search",
    ) -> Measurement | Checked:
        """The plan's time on a case, without baselines, or its failure. See TimePart."""
        part = TimePart(plan, case, seed, checked, against_us)
        answer_part = self.answer(PlanSetRequest(timings=(part,), precision=precision)).timings[0]
        assert answer_part is not None, "a single part has an answer"
        return answer_part


def environment_here(kind: str, device: str, driver: str, confinement: str) -> Environment:
    """The environment of a runner in this process."""
    return Environment(
        kind=kind,
        device=device,
        driver=driver,
        torch=torch.__version__,
        triton=triton_version(),
        fp_fusion=FP_FUSION,
        judge=JUDGE_VERSION,
        confinement=confinement,
    )
