"""The judge as the loop and sessions from outside ask it: again where the machine failed; what operators probe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from evo_kernel.budget import Spent
from evo_kernel.deadline import Deadline
from evo_kernel.engine.settings import EngineSettings
from evo_kernel.errors import InfraError
from evo_kernel.types import Evaluation, Judge, Purpose, Recorded, ScoredCandidate, Source, Status
from evo_kernel.types.promotion import confirmed


class RetryingJudge:
    """A judge whose machine may fail: asked again, then answered for with an infra_error. Thread-safe.

    `aborted`: nothing is asked again any more. `trouble` hears of every failure that is followed by another try.
    """

    def __init__(
        self,
        judge: Judge,
        task_identity: str,
        settings: EngineSettings,
        aborted: threading.Event,
        trouble: Callable[[str], None],
    ) -> None:
        self._judge, self._task, self._settings = judge, task_identity, settings
        self._aborted, self._trouble = aborted, trouble

    def judge(
        self,
        recorded: Recorded,
        purpose: Purpose = Purpose.SCORE,
        scored: ScoredCandidate | None = None,
        remeasure: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        """The verdict on a durable candidate; an infra_error when the machine failed on every try. Raises CutShort.

        `scored`: the candidate with the knobs that it is to keep; None where the judge may tune it.
        """
        proposed = recorded.proposal.source
        source = scored.source if scored is not None else proposed
        evaluation = confirmed(
            self._evaluate(source, purpose, remeasure, against, deadline or Deadline(), effort), recorded.candidate
        )
        if scored is not None and scored.knobs:  # the verdict on a setting of this candidate, not on another source
            evaluation = replace(evaluation, source=proposed.sha256, knobs=scored.knobs)
        return evaluation

    def _evaluate(
        self, source: Source, purpose: Purpose, remeasure: bool, against: Source | None, deadline: Deadline, effort: int
    ) -> Evaluation:
        left = self._settings.infra_retries
        while True:
            try:
                return self._judge.evaluate(source, purpose, remeasure, against, deadline, effort)
            except InfraError as error:
                if left == 0 or self._aborted.is_set() or deadline.over:
                    reason, where = str(error) or "the machine failed and gave no reason", self._judge.environment
                    return Evaluation(source.sha256, self._task, purpose, where, Status.INFRA_ERROR, reason)
                self._trouble(f"the machine failed, {left} more tries: {error}")
                left -= 1
                self._aborted.wait(self._settings.infra_wait_s)


class Probing:
    """The judge as an operator at work sees it. Keeps account of what was charged."""

    def __init__(self, judge: Judge, deadline: Deadline) -> None:
        self._judge, self._deadline, self.spent = judge, deadline, Spent()

    def __call__(self, source: Source) -> Evaluation:
        evaluation = self._judge.evaluate(source, Purpose.PROBE, deadline=self._deadline)
        self.spent += Spent.of(None, evaluation)
        return evaluation
