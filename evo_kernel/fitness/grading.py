"""Grading: plans of one knob setting, checked and timed case by case, and what is known of them already.

What was found out about a plan is kept, so that the same plan never costs twice.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from evo_kernel.errors import EvoKernelError
from evo_kernel.fitness.compile.second_assembler import SecondOpinion
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.correctness.references import SeedPool, fresh_seed
from evo_kernel.fitness.evaluation_context import PASSED, EvaluationContext, Findings
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.cases import record_case
from evo_kernel.fitness.record.recorder import Recorder, Recording
from evo_kernel.fitness.runners.base import Checked, CheckPart, PlanSetRequest, Round, Runner, TimePart
from evo_kernel.fitness.timing.baseline_times import BaselineTimes
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, CheckResult, Knobs, Measurement, PlanVerdict, Purpose, Source, Status

_AHEAD = 2
"""Timed cases whose references are made before a kernel is there: inputs of no more than a few are kept."""


@dataclass(frozen=True, eq=False)
class _Step:
    """One case of a pass over a setting, and what can be said of it before anything is executed."""

    case: Case
    knobs: Knobs
    plan: CompiledPlan
    timed: bool
    settled: Checked | Measurement | None  # found out by an earlier evaluation, or a rule that it breaks
    known: bool  # by an earlier evaluation
    checked: bool = True  # see `Runner.measure`
    against_us: float | None = None

    @property
    def fails(self) -> bool:
        return isinstance(self.settled, Checked) and not self.settled.passed

    def verdict(self, found: Checked | Measurement) -> PlanVerdict:
        """As it is kept."""
        name, plan = self.case.name, self.plan.hash
        if not isinstance(found, Checked):
            return PlanVerdict(name, plan, Status.PASSED, measurement=found)
        check = None if self.timed else CheckResult(name, found.passed, found.error, found.reason)
        return PlanVerdict(name, plan, found.status, found.reason, check)


class Grader:
    """Checks and times recorded plans of one task. Thread-safe: what belongs to one evaluation is in its Findings."""

    def __init__(self, task: Task, recorder: Recorder, baselines: BaselineTimes, second: SecondOpinion) -> None:
        self._task, self._recorder, self._baselines = task, recorder, baselines
        self._second = second
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], PlanVerdict] = {}
        self._seeds = SeedPool()

    def know(self, verdicts: Iterable[PlanVerdict]) -> None:
        """Take in what was found out about plans in this environment."""
        for verdict in verdicts:
            with self._lock:
                self._known[(verdict.case, verdict.plan)] = verdict
            if verdict.measurement is not None:
                self._baselines.know(verdict.measurement)

    def find(self, case: str, plan: str) -> PlanVerdict | None:
        with self._lock:
            return self._known.get((case, plan))

    def get_ready(self, runner: Runner) -> None:
        """Have a runner make what the first score will be held against. What fails will fail there again."""
        checks = [(case, *one) for case in self.cases(CaseKind.CHECK) for one in self._rounds(case, Purpose.SCORE)]
        timed = [
            (case, self._timed_seed(case, Purpose.SCORE), "nominal") for case in self.cases(CaseKind.SEARCH)[:_AHEAD]
        ]
        with contextlib.suppress(EvoKernelError):
            runner.get_ready([*timed, *checks])

    def cases(self, kind: CaseKind) -> tuple[Case, ...]:
        found = self._task.cases_of(kind)
        return found or (self._task.cases_of(CaseKind.SEARCH) if kind is CaseKind.CONFIRM else ())

    def record(self, source: Source, kinds: Sequence[CaseKind], settings: Sequence[Knobs] = ((),)) -> Recording:
        """Plans of a source on all cases of these kinds."""
        cases = {case.name: case for kind in kinds for case in self.cases(kind)}
        return self._recorder.record(source, tuple(record_case(self._task, case) for case in cases.values()), settings)

    def record_case(self, source: Source, case: Case, settings: Sequence[Knobs], patience_s: float) -> Recording:
        """Plans of a source on one case; what compiles longer than `patience_s` is given up."""
        return self._recorder.record(source, (record_case(self._task, case),), settings, patience_s)

    def grade(
        self, context: EvaluationContext, recording: Recording, knobs: Knobs = (), timed: Sequence[CaseKind] = ()
    ) -> Findings:
        """One setting's checks, then its times on these kinds of case, in one pass: the first failure ends it.

        All that is not known is asked of the runner in one request. Raises CutShort.
        """
        context.deadline.check()  # what ran out of time by now may be a fault of the deadline, not of the kernel
        if recording.fault is not None:
            return Findings(Checked(recording.fault.status, recording.fault.reason))
        steps = self._steps(context, recording, knobs, timed)
        answers = self.ask(context, [step for step in steps if step.settled is None])
        found = Findings()
        for step in steps:
            context.deadline.check()
            found = found.then(self._settle(context, step, answers.get(step)))
            if not found.ended.passed:
                break
        if not all(check.known for check in steps[: len(found.checks)]):
            found = replace(found, charged={Purpose.TUNE if knobs else context.purpose: 1})
        return found

    def time(
        self, context: EvaluationContext, plan: CompiledPlan, case: Case, knobs: Knobs, against_us: float
    ) -> Findings:
        """The time of one setting that has not been checked."""
        step = self._step(context, plan, case, knobs, timed=True)
        return self._settle(context, replace(step, checked=False, against_us=against_us), None)

    def _steps(
        self, context: EvaluationContext, recording: Recording, knobs: Knobs, timed: Sequence[CaseKind]
    ) -> list[_Step]:
        """In order, up to the first that fails before anything is executed."""
        steps: list[_Step] = []
        for kind in (CaseKind.CHECK, *timed):
            for case in self.cases(kind):
                plan = recording.plans[(case.name, knobs)]
                assert isinstance(plan, CompiledPlan), "a recording without a fault has every plan"
                steps.append(self._step(context, plan, case, knobs, timed=kind is not CaseKind.CHECK))
                if steps[-1].fails:
                    return steps
        return steps

    def _step(self, context: EvaluationContext, plan: CompiledPlan, case: Case, knobs: Knobs, timed: bool) -> _Step:
        verdict = None if context.purpose is Purpose.CONFIRM else self.find(case.name, plan.hash)
        settled: Checked | Measurement | None = None
        if verdict is not None and verdict.status is Status.PASSED and timed:
            settled = None if context.anew else verdict.measurement
        elif verdict is not None:
            settled = Checked(verdict.status, verdict.reason, verdict.check.error if verdict.check else 0.0)
        known = settled is not None
        if not known and (fault := rule_fault(self._task, plan)):
            settled = Checked(Status.REJECTED, fault)
        return _Step(case, knobs, plan, timed, settled, known)

    def ask(self, context: EvaluationContext, steps: Sequence[_Step]) -> dict[_Step, Checked | Measurement | None]:
        """What the runner answers in one request; None where it has to be asked again, alone."""
        if not steps:
            return {}
        checks, timings = [one for one in steps if not one.timed], [one for one in steps if one.timed]
        found = context.runner.answer(
            PlanSetRequest(
                tuple(CheckPart(one.plan, one.case, tuple(self._draws(context, one))) for one in checks),
                tuple(TimePart(one.plan, one.case, self._draws(context, one)[0][0]) for one in timings),
                "claim" if context.anew or context.purpose is Purpose.CONFIRM else "search",
            )
        )
        return {**dict(zip(checks, found.checks, strict=False)), **dict(zip(timings, found.timings, strict=False))}

    def _settle(self, context: EvaluationContext, step: _Step, answer: Checked | Measurement | None) -> Findings:
        """What is known now of one step, which is kept where it is new."""
        found = step.settled or answer or self._alone(context, step)
        new = not step.known
        if new and isinstance(found, Checked):
            found = self._second.on(found, step.plan, step.case, self._draws(context, step), context.runner)
        elif new and not isinstance(found, Checked):
            found = self._baselines.hold(context.runner, step.case, found)
            # What is timed without a check may be wrong: its plan may come again.
            new = step.checked and not isinstance(found, Checked)
        verdict = step.verdict(found)
        if new:
            self.know([verdict])
        if step.checked and not step.known:
            self._seeds.answered(step.case.name, shows_values=verdict.status is Status.WRONG)
        return Findings(
            ended=found if isinstance(found, Checked) else PASSED,
            checks=(verdict.check,) if verdict.check is not None else (),
            measurements=(verdict.measurement,) if verdict.measurement is not None else (),
            plans=((step.case.name, step.knobs, step.plan.hash),),
            verdicts=(verdict,) if new else (),
        )

    def _alone(self, context: EvaluationContext, step: _Step) -> Checked | Measurement:
        draws = self._draws(context, step)
        if not step.timed:
            return context.runner.check(step.plan, step.case, draws)
        return context.runner.measure(step.plan, step.case, draws[0][0], step.checked, step.against_us)

    def retime(self, context: EvaluationContext, plans: Sequence[tuple[Case, CompiledPlan]], knobs: Knobs) -> Findings:
        """The times that a tuned setting is scored with, outputs checked while they are taken. Raises CutShort."""
        found = Findings()
        for case, plan in plans:
            context.deadline.check()
            found = found.then(self._settle(context, self._step(context, plan, case, knobs, timed=True), None))
            if not found.ended.passed:
                break
        return found

    def right_when_wide(self, context: EvaluationContext, recording: Recording) -> Findings:
        """Checks at the sizes that scores are of, of values that are not nominal. Raises CutShort."""
        for case in self.cases(CaseKind.SEARCH):
            context.deadline.check()
            plan = recording.plans[(case.name, ())]
            assert isinstance(plan, CompiledPlan), "a recording without a fault has every plan"
            rounds = [(fresh_seed(), regimes.WIDE)]
            found = self._second.on(context.runner.check(plan, case, rounds), plan, case, rounds, context.runner)
            if not found.passed:
                return Findings(found)
        return Findings()

    def _draws(self, context: EvaluationContext, step: _Step) -> list[Round]:
        if step.timed:
            return [(self._timed_seed(step.case, context.purpose), "nominal")]
        return self._rounds(step.case, context.purpose)

    def _rounds(self, case: Case, purpose: Purpose) -> list[Round]:
        if purpose is Purpose.CONFIRM:
            return [(fresh_seed(), regime) for regime in regimes.CONFIRM]
        return [(self._seeds.seed(case.name, regime), regime) for regime in regimes.SEARCH]

    def _timed_seed(self, case: Case, purpose: Purpose) -> int:
        return fresh_seed() if purpose is Purpose.CONFIRM else self._seeds.seed(case.name, "timed")


def rule_fault(task: Task, plan: CompiledPlan) -> str:
    """What ALLOW forbids, in a sentence; empty when the plan keeps to it."""
    if not plan.plan.nodes:
        return "run launches nothing: its outputs are never computed"
    if task.allow == "kernels" and plan.plan.aten_nodes:
        names = sorted({node.op.removeprefix("aten.") for node in plan.plan.aten_nodes})
        return (
            f"run calls torch operations ({', '.join(names[:5])}); this task allows kernels only: "
            "compute it in a kernel, or set ALLOW = 'mixed' in the task"
        )
    if not plan.plan.launches:
        return "run launches no kernel of its own"
    if task.allow == "kernels" and plan.plan.copied_outputs:
        return f"output {plan.plan.copied_outputs[0]} is a copy of a tensor: compute it in a kernel"
    return ""
