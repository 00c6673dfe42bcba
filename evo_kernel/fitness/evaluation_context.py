"""What one evaluation was asked for, and what it found out."""

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
    """What was asked, and who serves it."""

    source: Source
    purpose: Purpose
    runner: Runner
    anew: bool = False  # times are taken again, checks are not
    tune_plans: int = 0  # knob settings to try beyond the source's own
    thorough: bool = False  # all of them are tried, however far behind the best the source is
    deadline: Deadline = field(default_factory=Deadline)


@dataclass(frozen=True)
class Findings:
    """What was found out about a source, or about a part of what it is asked: how that ended, and what it took."""

    ended: Checked = PASSED
    knobs: Knobs = ()  # that it is scored with
    checks: tuple[CheckResult, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    comparisons: tuple[PairedComparison, ...] = ()
    plans: tuple[tuple[str, Knobs, str], ...] = ()
    verdicts: tuple[PlanVerdict, ...] = ()
    charged: Mapping[str, int] = field(default_factory=dict)

    def then(self, later: Findings) -> Findings:
        """These, and what was found out after them: that is how it ended."""
        return Findings(
            later.ended,
            self.knobs,
            self.checks + later.checks,
            self.measurements + later.measurements,
            self.comparisons + later.comparisons,
            self.plans + later.plans,
            self.verdicts + later.verdicts,
            Counter(self.charged) + Counter(later.charged),
        )

    def beside(self, others: Sequence[Findings]) -> Findings:
        """These, and what it took to find out about others, which are not what is scored."""
        together = self
        for other in others:
            together = together.then(other)
        return replace(together, ended=self.ended, measurements=self.measurements)

    def evaluation(self, context: EvaluationContext, task: str, environment: Environment) -> Evaluation:
        """The evaluation of a task (its identity). What failed has no times."""
        passed = self.ended.passed
        speedups = [m.speedup for m in self.measurements] if passed else []
        return Evaluation(
            source=context.source.sha256,
            task=task,
            purpose=context.purpose,
            environment=environment,
            status=self.ended.status,
            reason=self.ended.reason,
            score=math.exp(math.fsum(map(math.log, speedups)) / len(speedups)) if speedups else None,
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
