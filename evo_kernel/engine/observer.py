"""Who hears what happens in a run."""

from __future__ import annotations

from typing import Protocol

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Evaluation, Proposal, Recorded


class Observer(Protocol):
    """Hears what happens, one call at a time, from many threads. Must be quick and must not raise."""

    def attempt_started(self, brief: Brief) -> None: ...

    def proposed(self, brief: Brief, proposal: Proposal) -> None: ...

    def operator_failed(self, brief: Brief, failure: OperatorFailed) -> None: ...

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None: ...

    def confirming(self, candidate: int, expected_s: float) -> None:
        """A candidate is about to be confirmed, which is likely to take so long."""
        ...

    def trouble(self, message: str) -> None: ...


class Silence:
    """An observer that hears nothing."""

    def attempt_started(self, brief: Brief) -> None:
        del brief

    def proposed(self, brief: Brief, proposal: Proposal) -> None:
        del brief, proposal

    def operator_failed(self, brief: Brief, failure: OperatorFailed) -> None:
        del brief, failure

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None:
        del recorded, evaluation, is_best

    def confirming(self, candidate: int, expected_s: float) -> None:
        del candidate, expected_s

    def trouble(self, message: str) -> None:
        del message
