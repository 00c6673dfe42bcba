"""The operator of a run: one operator, and what surrounds every attempt that it makes."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evo_kernel.errors import OperatorFailed
from evo_kernel.fitness.stages import THINKING, Stages
from evo_kernel.types import Brief, Credit, Evaluation, Operator, Probe, Proposal
from operators.macro.memory import StrategyMemory

if TYPE_CHECKING:
    from evo_kernel.app.call_accounting import CallAccounting


@dataclass(frozen=True)
class AttemptContext:
    """What an attempt is made in. The last two are of runs that ask language models."""

    stages: Stages  # where it is marked; what is probed counts at the stage where the probe is
    memory: StrategyMemory | None = None  # hears every credit, whoever made the proposal
    accounting: CallAccounting | None = None
    stop: threading.Event | None = None  # set when the run ends, and calls of models with it


class RunOperator:
    """Makes each attempt of an operator in one context."""

    def __init__(self, operator: Operator, context: AttemptContext) -> None:
        self.name = operator.name
        self._operator, self._context = operator, context

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        context = self._context
        charged = context.accounting.at(brief.attempt) if context.accounting else contextlib.nullcontext()
        with context.stages.at(THINKING), charged:
            try:
                return self._operator.propose(brief, probe)
            except OperatorFailed as failure:
                # A call that ended with the run is no failure of the attempt, which stays open as after a kill: an
                # agent goes on with it in the next session, of any other operator it is abandoned.
                failure.paused = failure.paused or (context.stop is not None and context.stop.is_set())
                if context.accounting and not failure.paused:
                    context.accounting.earned(brief.attempt, 0.0)
                raise

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return self._operator.witnessed(proposal, parent, child)

    def learn(self, credit: Credit) -> None:
        if self._context.memory is not None:
            self._context.memory.learn(credit)
        if self._context.accounting is not None and credit.depth == 0:
            self._context.accounting.earned(credit.attempt, credit.log_gain)
        self._operator.learn(credit)
