"""The exception tree.

    EvoKernelError                 base; `exit_code` is what the command line returns
    ├── UserError            (2)   the user can mend it: says what was wrong, where, and what to do
    │   ├── ConfigError            a run configuration that does not validate
    │   ├── TaskError              a task file that cannot be loaded, or is degenerate
    │   │   ├── LoweringError      the reference uses an operation with no lowering, and there is no SEED
    │   │   └── BadDraw            the reference fails on some of the inputs that are drawn for it
    │   ├── PopulationError        a population file that cannot be opened, or does not fit the request
    │   │   └── PopulationLocked   another live process holds the file: names its pid and host
    │   └── PlanError              a plan file that does not validate
    ├── CutShort                   an evaluation that had no verdict when its time was up: made again later
    ├── OperatorFailed             the agent's failure: recorded with what it cost, then the search goes on
    └── InfraError           (3)   the machine's failure: retried, never scored

A broken kernel is not an exception: it is an `Evaluation` with a `Status`. Whatever else is raised is a bug of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evo_kernel.types import Call, Decision, Step


class EvoKernelError(Exception):
    """Base of every exception that this project raises on purpose."""

    exit_code = 1


class UserError(EvoKernelError):
    """The user can mend it. The message says what was wrong, where, and what to do next."""

    exit_code = 2


class ConfigError(UserError):
    """A run configuration that does not validate."""


class TaskError(UserError):
    """A task that cannot be loaded, or whose reference is degenerate."""


class LoweringError(TaskError):
    """The reference uses an operation for which no first kernel can be written."""


class BadDraw(TaskError):
    """The reference fails on one draw of its inputs, such as a singular matrix: others may do."""


class PopulationError(UserError):
    """A population file that cannot be opened, or does not fit the request."""


class PopulationLocked(PopulationError):
    """Another live process writes this population."""

    def __init__(self, path: str, pid: int, host: str) -> None:
        super().__init__(
            f"{path} is in use by process {pid} on {host}. Wait for it, stop it, or look with "
            f"`evo-kernel status {path}`, which only reads."
        )
        self.pid, self.host = pid, host


class PlanError(UserError):
    """A launch plan that does not validate. Plans come from untrusted processes and files."""


class CutShort(EvoKernelError):
    """An evaluation had no verdict when its time was up. Nobody's failure: it is made again by a later session."""


class OperatorFailed(EvoKernelError):
    """An operator could not make a proposal; carries what it had cost by then.

    `exhausted`: there is nothing left that it could try on this parent, as far as it can see now.
    `paused`: it did not fail: the attempt stays open, and a later session goes on with it.
    """

    def __init__(
        self,
        reason: str,
        *,
        operator: str = "",
        decisions: tuple[Decision, ...] = (),
        steps: tuple[Step, ...] = (),
        calls: tuple[Call, ...] = (),
        exhausted: bool = False,
        paused: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason, self.operator, self.exhausted = reason, operator, exhausted
        self.paused = paused
        self.decisions, self.steps, self.calls = decisions, steps, calls


class InfraError(EvoKernelError):
    """The machine failed, not the kernel: a lost child, a full disk, a GPU that went away.

    `operator`: who was at work, where it was an operator.
    """

    exit_code = 3
    operator = ""
