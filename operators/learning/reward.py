"""What a step earns: MTMC's parts, each of which can be set.

Compiling and running right earn a little, failing costs, and being faster than the step before earns most, less with
each step, so that short ways are preferred. How fast the decay is the method's paper does not say. `gain_as` "step"
pays `gain` for any step that is faster by `least_gain`, as MTMC does; "log" pays `gain` times the log gain, and takes
as much for a step that is slower: then the undecayed sum over a walk is the log gain of its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evo_kernel.types import Status

UNCOMPILED = (None, Status.BUILD_ERROR, Status.REJECTED)
"""Statuses that count as not compiled; None: the coder could not carry the strategy out."""


@dataclass(frozen=True)
class RewardSettings:
    """MTMC's numbers; `decay` and `least_gain` are ours."""

    compile_fail: float = -1.0
    compile_pass: float = 0.1
    execute_fail: float = -0.5
    execute_pass: float = 0.5
    gain: float = 1.0
    gain_as: Literal["step", "log"] = "step"
    least_gain: float = 0.01  # log gain that counts as faster: timing noise is about half of it
    decay: float = 0.9  # of the gain's part, per step
    witness: float = 0.0  # for a strategy that the plan shows
    stop: float = 0.0

    @staticmethod
    def log_gain() -> RewardSettings:
        """The gain alone, undecayed: returns are log gains."""
        return RewardSettings(0.0, 0.0, 0.0, 0.0, gain_as="log", decay=1.0)


@dataclass(frozen=True)
class Reward:
    """The parts of one step's reward."""

    compile: float = 0.0
    execute: float = 0.0
    gain: float = 0.0
    witness: float = 0.0
    stop: float = 0.0

    @property
    def total(self) -> float:
        return self.compile + self.execute + self.gain + self.witness + self.stop


def reward_of(
    settings: RewardSettings, status: Status | None, log_gain: float, witnessed: bool = False, step: int = 0
) -> Reward:
    """`step`: how many were made before it. `log_gain`: over the step before, that is over the parent."""
    if status in UNCOMPILED:
        return Reward(compile=settings.compile_fail)
    if status is not Status.PASSED:
        return Reward(compile=settings.compile_pass, execute=settings.execute_fail)
    if settings.gain_as == "log":
        gained = settings.gain * log_gain
    else:
        gained = settings.gain if log_gain >= settings.least_gain else 0.0
    return Reward(
        settings.compile_pass, settings.execute_pass, gained * settings.decay**step,
        settings.witness if witnessed else 0.0,
    )  # fmt: skip
