"""Request and partial results of one evaluation: `EvaluationContext` and `PartialEvaluation`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from evo_kernel.deadline import Deadline
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.types import (
    CheckResult,
    Environment,
    Evaluation,
    Knobs,
    Measurement,
    PairedComparison,
    PlanVerdict,
    Purpose,
    Source,
    Status,
)

PASSED = Checked(Status.PASSED)


@dataclass(frozen=True)
class EvaluationContext:
    """The request of one evaluation, with the runner that serves it."""

    source: Source
    purpose: Purpose
    runner: Runner
    remeasure: bool = False  # measure times again; known checks are reused
    tune_plans: int = 0  # knob settings to try in addition to the source's own
    thorough: bool = False  # try all of them, even if the source is much slower than the best
    deadline: Deadline = field(default_factory=Deadline)


@dataclass(frozen=True)
class PartialEvaluation:
    """Results of an evaluation or of one of its steps: status, checks, times, and the evaluations it cost."""

    ended: Checked = PASSED
    knobs: Knobs = ()  # the setting that is scored
    checks: tuple[CheckResult, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    comparisons: tuple[PairedComparison, ...] = ()
    plans: tuple[tuple[str, Knobs, str], ...] = ()
    verdicts: tuple[PlanVerdict, ...] = ()
    charged: Mapping[str, int] = field(default_factory=dict)

    def then(self, later: PartialEvaluation) -> PartialEvaluation:
        """These results followed by `later` ones, whose status is the status of both."""
        return PartialEvaluation(
            later.ended,
            self.knobs,
            self.checks + later.checks,
            self.measurements + later.measurements,
            self.comparisons + later.comparisons,
            self.plans + later.plans,
            self.verdicts + later.verdicts,
            Counter(self.charged) + Counter(later.charged),
        )

    def beside(self, others: Sequence[PartialEvaluation]) -> PartialEvaluation:
        """These results plus the costs of `others`, which are not scored: status, checks and times stay."""
        together = self
        for other in others:
            together = together.then(other)
        return replace(together, ended=self.ended, checks=self.checks, measurements=self.measurements)

    def evaluation(self, context: EvaluationContext, task: str, environment: Environment) -> Evaluation:
        """The evaluation for a task (by its identity). A failed one has no times."""
        passed = self.ended.passed
        speedups = [m.speedup for m in self.measurements] if passed else []
        scored = speedups and not any(map(math.isnan, speedups))
        return Evaluation(
            source=context.source.sha256,
            task=task,
            purpose=context.purpose,
            environment=environment,
            status=self.ended.status,
            reason=self.ended.reason,
            score=math.exp(math.fsum(map(math.log, speedups)) / len(speedups)) if scored else None,
            knobs=self.knobs,
            checks=self.checks,
            measurements=self.measurements if passed else (),
            plans=tuple(dict.fromkeys(self.plans)),
            verdicts=self.verdicts,
            comparisons=self.comparisons if passed else (),
            charged=dict(self.charged),
        )


def mean_log(measured: Sequence[Measurement]) -> float:
    """Log of the geometric mean of times in µs."""
    return math.fsum(math.log(m.median_us) for m in measured) / len(measured)
