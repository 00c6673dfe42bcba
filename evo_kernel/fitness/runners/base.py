"""The interface of runners, which execute plans, check them and tell their time; and what all runners share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import triton

from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.profiling.counters import CounterReading, CountPart
from evo_kernel.fitness.stages import Stages
from evo_kernel.fitness.timing.estimates import JUDGE_VERSION
from evo_kernel.fitness.timing.pairing import Comparison
from evo_kernel.tasks.task import Case
from evo_kernel.types import Environment, Measurement, Status

Round = tuple[int, str]
"""(seed, regime): one draw of inputs, see fitness/regimes.py."""
Draw = tuple[Case, int, str]
"""(case, seed, regime)."""


@dataclass(frozen=True)
class Checked:
    """How one plan did on one case. `error` in units of what is allowed: 1.0 is the limit."""

    status: Status
    reason: str = ""
    error: float = 0.0

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED


@dataclass(frozen=True)
class CheckPart:
    """One plan to check on one case."""

    plan: CompiledPlan
    case: Case
    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class TimePart:
    """One plan to time on one case."""

    plan: CompiledPlan
    case: Case
    seed: int
    checked: bool = True  # whether outputs of timed launches are, too. Not while knobs are tuned: the winner is
    against_us: float | None = None  # the time to beat: sampling ends once the answer to that is clear


@dataclass(frozen=True)
class PlanSetRequest:
    """Everything that is asked about one plan set: checks first, then timings, ended by the first that fails."""

    checks: tuple[CheckPart, ...] = ()
    timings: tuple[TimePart, ...] = ()
    precision: str = "search"  # or "claim": what is published


@dataclass(frozen=True)
class PlanSetAnswer:
    """Answers in the order of the request's parts; as many as were reached. None: lost to a later part's fault."""

    checks: tuple[Checked | None, ...] = ()
    timings: tuple[Measurement | Checked | None, ...] = ()

    @property
    def fault(self) -> Checked | None:
        """What ended the request early, or at its last part."""
        found = [*self.checks, *self.timings]
        return next((part for part in found if isinstance(part, Checked) and not part.passed), None)


class Runner(ABC):
    """Executes plans, checks them and tells their time. Thread-safe. Never raises for a broken kernel; raises
    InfraError when the machine failed."""

    arch: int
    stages: Stages  # where it marks who waits for the GPU, and who is on it

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def environment(self, confinement: str) -> Environment: ...

    @abstractmethod
    def get_ready(self, draws: Sequence[Draw]) -> None:
        """Make the references of the first request, while its kernel is recorded. What fails will fail there again."""

    @abstractmethod
    def answer(self, request: PlanSetRequest) -> PlanSetAnswer: ...

    @abstractmethod
    def pair(self, incumbent: CompiledPlan, challenger: CompiledPlan, case: Case, seed: int) -> Comparison | Checked:
        """Whether the challenger is faster, by samples taken side by side; the same plan twice is an A/A test."""

    @abstractmethod
    def fresh(self) -> AbstractContextManager[Runner]:
        """A runner that has served nobody, for the calling thread alone: a new process, empty caches, and on a GPU a
        new context. Nothing else runs on that GPU meanwhile, so prepare what takes long before."""

    @abstractmethod
    def counters(self, parts: Sequence[CountPart]) -> CounterReading:
        """Hardware counters of the launches of plans; nothing else runs on that GPU meanwhile."""

    @property
    def card(self) -> str:
        """What tells a GPU from others of its model; known once it is started."""
        return ""

    @property
    def busy_s(self) -> float:
        """Seconds of GPU time that requests of the calling thread have taken."""
        return 0.0

    def baselines(self, case: Case) -> Mapping[str, float]:
        """Median µs of what the task lists; empty where it cannot be timed, and the first kernel stands in."""
        return {}

    @property
    def baseline_faults(self) -> Mapping[str, str]:
        """Why a baseline has no time, by `case: name`."""
        return {}

    def ceilings(self) -> Mapping[str, float]:
        """What this GPU can do at most, as `Ceilings.as_data`; empty where there is none. Measured once."""
        return {}

    def check(self, plan: CompiledPlan, case: Case, rounds: Sequence[Round]) -> Checked:
        found = self.answer(PlanSetRequest(checks=(CheckPart(plan, case, tuple(rounds)),))).checks[0]
        assert found is not None, "a part alone is lost to no other"
        return found

    def measure(
        self,
        plan: CompiledPlan,
        case: Case,
        seed: int,
        checked: bool = True,
        against_us: float | None = None,
        precision: str = "search",
    ) -> Measurement | Checked:
        """The plan's time on a case, without baselines; or how it failed while it was timed. See TimePart."""
        part = TimePart(plan, case, seed, checked, against_us)
        found = self.answer(PlanSetRequest(timings=(part,), precision=precision)).timings[0]
        assert found is not None, "a part alone is lost to no other"
        return found


def environment_here(kind: str, device: str, driver: str, confinement: str) -> Environment:
    """The environment of a runner of this process."""
    return Environment(
        kind=kind,
        device=device,
        driver=driver,
        torch=torch.__version__,
        triton=triton.__version__,
        fp_fusion=os.environ.get("TRITON_DEFAULT_FP_FUSION", "1") == "1",
        judge=JUDGE_VERSION,
        confinement=confinement,
    )
