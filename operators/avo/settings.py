"""How an agent works: its limits an attempt, and when it is reviewed."""

from __future__ import annotations

from dataclasses import dataclass, field

from operators.workbench.judge_tools import Allowed


@dataclass(frozen=True)
class AttemptLimits:
    """What ends an attempt without a commit. None: no limit. All sessions of an attempt count together."""

    turns: int = 120  # answers of the model
    seconds: float | None = 3 * 3600.0  # of work: answers and tools, not the time between two sessions
    idle: int = 3  # answers in a row that call no tool
    calls_a_turn: int = 12  # tool calls of one answer that are carried out; of more it is told
    max_tokens: int = 8192  # of one answer
    down_waits: int = 10  # times that a model which is down is waited for, before the attempt is set aside
    down_wait_s: float = 30.0


@dataclass(frozen=True)
class ContextLimits:
    """`bytes`: hard bound of a prompt's text. `keep_turns`: the latest turns, which are never summed up."""

    bytes: int = 240_000
    keep_turns: int = 8
    summary_bytes: int = 16_000


@dataclass(frozen=True)
class SupervisorLimits:
    """When the trajectory is reviewed. A review starts both counts anew, and so does a commit."""

    attempts: int = 6  # in a row without a commit
    hours: float | None = 3.0  # without a commit
    repeats: int = 3  # times that the same idea or the same kernel has failed
    directions: int = 4  # asked for


@dataclass(frozen=True)
class AvoSettings:
    limits: AttemptLimits = field(default_factory=AttemptLimits)
    allowed: Allowed = field(default_factory=Allowed)
    context: ContextLimits = field(default_factory=ContextLimits)
    supervision: SupervisorLimits = field(default_factory=SupervisorLimits)
