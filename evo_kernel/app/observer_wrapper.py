"""An observer around another: what it does not add, the other hears as it was."""

from __future__ import annotations

from evo_kernel.engine import Observer
from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Evaluation, Proposal, Recorded


class Hearing:
    """An Observer that passes everything on."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def attempt_started(self, brief: Brief) -> None:
        self._observer.attempt_started(brief)

    def proposed(self, brief: Brief, proposal: Proposal) -> None:
        self._observer.proposed(brief, proposal)

    def operator_failed(self, brief: Brief, failure: OperatorFailed) -> None:
        self._observer.operator_failed(brief, failure)

    def judged(self, recorded: Recorded, evaluation: Evaluation, is_best: bool) -> None:
        self._observer.judged(recorded, evaluation, is_best)

    def confirming(self, candidate: int, expected_s: float) -> None:
        self._observer.confirming(candidate, expected_s)

    def trouble(self, message: str) -> None:
        self._observer.trouble(message)
