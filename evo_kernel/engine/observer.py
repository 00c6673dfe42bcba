"""Who hears what happens in a run."""

from __future__ import annotations

from typing import Protocol

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Evaluation, Proposal, Recorded


class Observer(Protocol):
    """Hears what happens, one call at a time, from many threads. Must be quick and must not raise."""

    def attempt_started(self, brief: Brief) -> None:
        pass

    def proposed(self, brief: Brief, proposal: Proposal) -> None:
        pass

    def operator_failed(self, brief: Brief, failure: OperatorFailed) -> None:
        pass

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None:
        pass

    def confirming(self, candidate: int, expected_s: float) -> None:
        """A candidate is about to be confirmed, which is likely to take so long."""

    def trouble(self, message: str) -> None:
        pass


class Silence(Observer):
    """An observer that hears nothing."""
