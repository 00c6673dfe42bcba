"""One evaluation in the making, and what becomes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evo_kernel.deadline import Deadline
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.types import (
    CheckResult,
    Environment,
    Evaluation,
    Knobs,
    Measurement,
    PlanVerdict,
    Purpose,
    Source,
    Status,
)


@dataclass
class EvaluationContext:
    """What was asked, and what is known of it so far."""

    source: Source
    purpose: Purpose
    runner: Runner  # that serves it
    anew: bool = False  # times are taken again, checks are not
    tune_plans: int = 0  # knob settings to try beyond the source's own
    thorough: bool = False  # all of them are tried, however far behind the best the source is
    deadline: Deadline = field(default_factory=Deadline)
    verdicts: list[PlanVerdict] = field(default_factory=list)
    checks: list[CheckResult] = field(default_factory=list)
    plans: list[tuple[str, Knobs, str]] = field(default_factory=list)
    charged: dict[str, int] = field(default_factory=dict)
    ahead: dict[tuple[str, str, str], Checked | Measurement] = field(default_factory=dict)
    """Answers that came with the first request, by (check or time, case, plan hash)."""

    def result(
        self,
        task: str,
        environment: Environment,
        ended: Checked,
        knobs: Knobs = (),
        measured: Sequence[Measurement] = (),
    ) -> Evaluation:
        """The evaluation of a task (its identity), as it ended."""
        speedups = [m.speedup for m in measured]
        score = math.exp(math.fsum(map(math.log, speedups)) / len(speedups)) if speedups else None
        return Evaluation(
            source=self.source.sha256,
            task=task,
            purpose=self.purpose,
            environment=environment,
            status=ended.status,
            reason=ended.reason,
            score=score,
            knobs=knobs,
            checks=tuple(self.checks),
            measurements=tuple(measured),
            plans=tuple(dict.fromkeys(self.plans)),
            verdicts=tuple(self.verdicts),
            charged=dict(self.charged),
        )


PASSED = Checked(Status.PASSED)


def mean_log(measured: Sequence[Measurement]) -> float:
    """Log of the geometric mean of times in µs."""
    return math.fsum(math.log(m.median_us) for m in measured) / len(measured)
