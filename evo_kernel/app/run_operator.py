"""The operator of a run: one operator, and what surrounds every attempt that it makes."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from evo_kernel.errors import OperatorFailed
from evo_kernel.fitness.stages import THINKING, Stages
from evo_kernel.types import Brief, Credit, Evaluation, Operator, Probe, Proposal
from operators.macro.policies import StrategyMemory

if TYPE_CHECKING:
    from evo_kernel.app.call_accounting import CallAccounting


class RunOperator:
    """Makes each attempt of an operator in one context.

    `stages`: where it is marked; what is probed counts at the stage where the probe is. `memory` hears every credit,
    whoever made the proposal. `accounting` and `stop` are of runs that ask language models; `stop` is set when the run
    ends, and calls of models with it.
    """

    def __init__(
        self,
        operator: Operator,
        stages: Stages,
        memory: StrategyMemory | None = None,
        accounting: CallAccounting | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.name = operator.name
        self._operator, self._stages, self._memory = operator, stages, memory
        self._accounting, self._stop = accounting, stop

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        charged = self._accounting.at(brief.attempt) if self._accounting else contextlib.nullcontext()
        with self._stages.at(THINKING), charged:
            try:
                return self._operator.propose(brief, probe)
            except OperatorFailed as failure:
                # A call that ended with the run is no failure of the attempt, which stays open as after a kill: an
                # agent goes on with it in the next session, of any other operator it is abandoned.
                failure.paused = failure.paused or (self._stop is not None and self._stop.is_set())
                raise

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return self._operator.witnessed(proposal, parent, child)

    def learn(self, credit: Credit) -> None:
        if self._memory is not None:
            self._memory.learn(credit)
        self._operator.learn(credit)
