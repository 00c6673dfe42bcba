"""What a runner is: the one that executes plans, checks them and tells their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from evo_kernel.fitness.plan import CompiledPlan
from evo_kernel.tasks.task import Case
from evo_kernel.types import Environment, Measurement, Status

Round = tuple[int, str]
"""(seed, regime): one draw of inputs, see fitness/regimes.py."""


@dataclass(frozen=True)
class Checked:
    """How one plan did on one case. `error` in units of what is allowed: 1.0 is the limit."""

    status: Status
    reason: str = ""
    error: float = 0.0
    of_text: bool = False  # about how the kernel is written: other text with the same code is not judged by it

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED


class Runner(Protocol):
    """Thread-safe. Never raises for a broken kernel; raises InfraError when the machine failed."""

    arch: int

    def start(self) -> None: ...

    def environment(self, confinement: str) -> Environment: ...

    def check(self, plan: CompiledPlan, case: Case, rounds: Sequence[Round]) -> Checked: ...

    def measure(self, plan: CompiledPlan, case: Case, seed: int, checked: bool = True) -> Measurement | Checked:
        """The plan's time on a case, without baselines; or how it failed while it was timed.

        `checked`: whether the outputs of a timed launch are checked too. Not while knobs are tuned: the winner is.
        """
        ...

    def baselines(self, case: Case) -> Mapping[str, float]:
        """Median µs of what the task lists; empty where it cannot be timed, and the first kernel stands in."""
        ...

    @property
    def busy_s(self) -> float:
        """Seconds of GPU time that requests of the calling thread have taken."""
        ...

    def close(self) -> None: ...
