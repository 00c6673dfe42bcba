"""An operator and a judge that follow a script, over real types: to run the real engine on the real population."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from evo_kernel.deadline import Deadline
from evo_kernel.fitness.profiling.compile_report import CompileReport
from evo_kernel.types import (
    Brief,
    CaseCard,
    CaseKind,
    CheckResult,
    Credit,
    Environment,
    Evaluation,
    KernelFeatures,
    Measurement,
    PlanFeatures,
    PlanVerdict,
    Probe,
    Proposal,
    Purpose,
    Source,
    Status,
    Strategy,
    TaskCard,
)

TASK = "identity-of-the-scripted-task"
ENVIRONMENT = Environment("modeled", "sm_90", "", "2.13.0", "3.9.0", True, 1, "namespaces")
CARD = TaskCard(
    "scripted", "def reference(x): ...", "kernels", "ieee", False, (CaseCard("large", CaseKind.SEARCH, {"n": 64}),)
)
FIRST = Source("time_us = 100.0\n")
STRATEGY = Strategy("shave", "tiling", "line 1")


def time_of(source: Source) -> float:
    """A scripted kernel is one line that says how long it takes."""
    return float(source.text.split("=")[1].split()[0])


def scored(
    source: Source, purpose: Purpose, charged: Mapping[str, int] | None = None, gpu_s: float = 0.0
) -> Evaluation:
    """What a judge says of a scripted kernel that is right."""
    median = time_of(source)
    kernel = KernelFeatures("k", (1, 1, 1), 4, 1, 32, 0, 0, "none", "load", "plain", {"fma": 1}, 1.0)
    features = PlanFeatures(1, 0, (kernel,))
    plan = source.sha256[:16]
    measured = Measurement("large", plan, median, 0.0, 0, median, median, {"first": 100.0}, features=features)
    check = CheckResult("large", True, 0.1)
    return Evaluation(
        source.sha256,
        TASK,
        purpose,
        ENVIRONMENT,
        Status.PASSED,
        score=100.0 / median,
        checks=(check,),
        measurements=(measured,),
        plans=(("large", (), plan),),
        verdicts=(PlanVerdict("large", plan, Status.PASSED, "", check, measured),),
        charged={str(purpose): 1} if charged is None else charged,
        gpu_s=gpu_s,
    )


@dataclass
class ScriptedOperator:
    """Every proposal is a few per cent faster or slower than its parent, by the brief's own seed."""

    name: str = "scripted"
    before: Callable[[Brief, Probe], None] | None = None  # may raise, sleep, or probe
    wait_s: float = 0.0
    learnt: list[Credit] = field(default_factory=list)

    def propose(self, brief: Brief, probe: Probe) -> Proposal:
        if self.before is not None:
            self.before(brief, probe)
        if self.wait_s:
            time.sleep(self.wait_s)
        factor = float(np.random.default_rng(brief.seed).uniform(0.95, 1.04))
        text = f"time_us = {time_of(brief.parent.source) * factor!r}  # attempt {brief.attempt}\n"
        return Proposal(Source(text), self.name, STRATEGY)

    def witnessed(self, proposal: Proposal, parent: Evaluation | None, child: Evaluation) -> bool:
        return True

    def learn(self, credit: Credit) -> None:
        self.learnt.append(credit)


@dataclass
class ScriptedJudge:
    """Answers at once, or what `answer` says; counts what it was asked."""

    answer: Callable[[Source, Purpose, int], Evaluation] | None = None
    wait_s: float = 0.0
    environment: Environment = ENVIRONMENT
    asked: list[tuple[str, Purpose]] = field(default_factory=list)
    against: list[Source | None] = field(default_factory=list)  # of each that was asked
    closed: threading.Event = field(default_factory=threading.Event)
    _numbers: itertools.count = field(default_factory=itertools.count)

    def evaluate(
        self,
        source: Source,
        purpose: Purpose,
        remeasure: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        del remeasure, deadline, effort
        self.asked.append((source.sha256, purpose))
        self.against.append(against)
        number = next(self._numbers)
        if self.wait_s:
            time.sleep(self.wait_s)
        return self.answer(source, purpose, number) if self.answer else scored(source, purpose)

    def compiled(self, source: Source, case_name: str | None = None) -> CompileReport:
        return CompileReport(case_name or "large", fault="build_error: scripted")

    def close(self) -> None:
        self.closed.set()


@dataclass
class Notebook:
    """An observer that remembers."""

    lines: list[str] = field(default_factory=list)

    def attempt_started(self, brief: Brief) -> None:
        self.lines.append(f"started {brief.attempt}")

    def operator_failed(self, brief: Brief, failure: Exception) -> None:
        self.lines.append(f"failed {brief.attempt}: {failure}")

    def judged(self, recorded, evaluation: Evaluation, is_best: bool) -> None:
        self.lines.append(f"judged {recorded.candidate} {evaluation.purpose} {evaluation.status} {is_best}")

    def confirming(self, candidate: int, expected_s: float) -> None:
        self.lines.append(f"confirming {candidate}")

    def trouble(self, message: str) -> None:
        self.lines.append(f"trouble: {message}")
