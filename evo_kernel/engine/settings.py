"""How the loop runs, and when it gives up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSettings:
    """How the loop runs, and when it gives up."""

    width: int = 1  # attempts in flight
    attempts: int | None = None  # so many end the run; None: no limit
    barren: int = 200  # so many attempts in a row that cost nothing end the run: there is nothing new left to try
    infra_retries: int = 2  # further tries of an evaluation that the machine failed, beyond the judge's own
    infra_wait_s: float = 2.0  # before each of them
    infra_stop: int = 3  # so many evaluations or attempts in a row that the machine failed end the run
    interrupt_s: float = 10.0  # verdicts under way have so long when somebody interrupts
    remeasured: float = 0.2  # of judged candidates: share that may be measured again where noise leaves order open
    confirmations: int = 5  # candidates tried on the hidden cases at the end, best first, until one stands
