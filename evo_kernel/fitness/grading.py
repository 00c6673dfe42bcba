"""Checks and times the plans of one knob setting, case by case, and caches the verdict of each plan.

Some versions of the assembler miscompile wgmma. So a wrong wgmma kernel is checked again with another assembler's code:
the verdict stays that of the configured one, and its reason tells whether the other code is correct.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from evo_kernel.errors import EvoKernelError
from evo_kernel.fitness.compile.assembler import Assembler, other_version
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.correctness.references import SeedPool, fresh_seed
from evo_kernel.fitness.evaluation_context import PASSED, EvaluationContext, PartialEvaluation
from evo_kernel.fitness.plan.launch_plan import Binary, CompiledPlan
from evo_kernel.fitness.plan.torch_operations import waits
from evo_kernel.fitness.record.recorder import Recorder, Recording, record_case
from evo_kernel.fitness.runners.base import Checked, CheckPart, PlanSetRequest, Round, Runner, TimePart
from evo_kernel.fitness.timing.baseline_times import BaselineTimes
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, CheckResult, Knobs, Measurement, PlanVerdict, Purpose, Source, Status

_AHEAD = 2
"""Timed cases whose references are computed before a kernel is ready; runners cache inputs of only a few."""


@dataclass(frozen=True, eq=False)
class _Step:
    """One case of a knob setting, with its result if that is known before anything is executed."""

    case: Case
    knobs: Knobs
    plan: CompiledPlan
    timed: bool
    settled: Checked | Measurement | None  # an earlier evaluation's result, or a violated rule
    known: bool  # settled by an earlier evaluation
    checked: bool = True  # see `Runner.measure`
    against_us: float | None = None

    @property
    def fails(self) -> bool:
        return isinstance(self.settled, Checked) and not self.settled.passed

    def verdict(self, outcome: Checked | Measurement) -> PlanVerdict:
        """The outcome as it is cached and stored."""
        name, plan = self.case.name, self.plan.hash
        if not isinstance(outcome, Checked):
            return PlanVerdict(name, plan, Status.PASSED, measurement=outcome)
        check = None if self.timed else CheckResult(name, outcome.passed, outcome.error, outcome.reason)
        return PlanVerdict(name, plan, outcome.status, outcome.reason, check)


class Grader:
    """Checks and times recorded plans of one task. Thread-safe: an evaluation's state is in its PartialEvaluation."""

    def __init__(self, task: Task, recorder: Recorder, baselines: BaselineTimes, second: SecondAssembler) -> None:
        self._task, self._recorder, self._baselines = task, recorder, baselines
        self._second = second
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], PlanVerdict] = {}
        self._seeds = SeedPool()

    def know(self, verdicts: Iterable[PlanVerdict]) -> None:
        """Add verdicts that were made in this environment to the cache."""
        for verdict in verdicts:
            with self._lock:
                self._known[(verdict.case, verdict.plan)] = verdict
            if verdict.measurement is not None:
                self._baselines.know(verdict.measurement)

    def draw_anew(self) -> None:
        """Forget all seeds."""
        self._seeds = SeedPool()

    def find(self, case: str, plan: str) -> PlanVerdict | None:
        with self._lock:
            return self._known.get((case, plan))

    def prepare_references(self, runner: Runner) -> None:
        """Have a runner compute the references of the first score. Errors are ignored: they will occur again there."""
        checks = [(case, *draw) for case in self.cases(CaseKind.CHECK) for draw in self._rounds(case, Purpose.SCORE)]
        timed = [
            (case, self._timed_seed(case, Purpose.SCORE), "nominal") for case in self.cases(CaseKind.SEARCH)[:_AHEAD]
        ]
        with contextlib.suppress(EvoKernelError):
            runner.prepare_references([*timed, *checks])

    def cases(self, kind: CaseKind) -> tuple[Case, ...]:
        cases_of_kind = self._task.cases_of(kind)
        return cases_of_kind or (self._task.cases_of(CaseKind.SEARCH) if kind is CaseKind.CONFIRM else ())

    def record(self, source: Source, kinds: Sequence[CaseKind], settings: Sequence[Knobs] = ((),)) -> Recording:
        """Plans of a source on all cases of these kinds."""
        cases = {case.name: case for kind in kinds for case in self.cases(kind)}
        return self._recorder.record(source, tuple(record_case(self._task, case) for case in cases.values()), settings)

    def record_case(self, source: Source, case: Case, settings: Sequence[Knobs], patience_s: float) -> Recording:
        """Plans of a source on one case; compilations longer than `patience_s` are abandoned."""
        return self._recorder.record(source, (record_case(self._task, case),), settings, patience_s)

    def grade(
        self, context: EvaluationContext, recording: Recording, knobs: Knobs = (), timed: Sequence[CaseKind] = ()
    ) -> PartialEvaluation:
        """Check one setting, then time it on the cases of the given kinds; the first failure ends it.

        Everything unknown goes to the runner in one request. Raises CutShort.
        """
        context.deadline.check()  # a timeout after this deadline may not be the kernel's fault
        if recording.fault is not None:
            return PartialEvaluation(Checked(recording.fault.status, recording.fault.reason))
        steps = self._steps(context, recording, knobs, timed)
        answers = self.ask(context, [step for step in steps if step.settled is None])
        partial = PartialEvaluation()
        for step in steps:
            context.deadline.check()
            partial = partial.then(self._settle(context, step, answers.get(step)))
            if not partial.ended.passed:
                break
        if not all(check.known for check in steps[: len(partial.checks)]):
            partial = replace(partial, charged={Purpose.TUNE if knobs else context.purpose: 1})
        return partial

    def time(
        self, context: EvaluationContext, plan: CompiledPlan, case: Case, knobs: Knobs, against_us: float
    ) -> PartialEvaluation:
        """Time one setting on one case without checking it."""
        step = self._step(context, plan, case, knobs, timed=True)
        return self._settle(context, replace(step, checked=False, against_us=against_us), None)

    def _steps(
        self, context: EvaluationContext, recording: Recording, knobs: Knobs, timed: Sequence[CaseKind]
    ) -> list[_Step]:
        """All steps in order, or up to the first that is known to fail."""
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
            settled = None if context.remeasure else verdict.measurement
        elif verdict is not None:
            settled = Checked(verdict.status, verdict.reason, verdict.check.error if verdict.check else 0.0)
        known = settled is not None
        if not known and (fault := rule_fault(self._task, case, plan)):
            settled = Checked(Status.REJECTED, fault)
        return _Step(case, knobs, plan, timed, settled, known)

    def ask(self, context: EvaluationContext, steps: Sequence[_Step]) -> dict[_Step, Checked | Measurement | None]:
        """Send steps to the runner in one request; a step without an answer needs a request of its own."""
        if not steps:
            return {}
        checks, timings = [step for step in steps if not step.timed], [step for step in steps if step.timed]
        reply = context.runner.answer(
            PlanSetRequest(
                tuple(CheckPart(step.plan, step.case, tuple(self._draws(context, step))) for step in checks),
                tuple(TimePart(step.plan, step.case, self._draws(context, step)[0][0]) for step in timings),
                "claim" if context.remeasure or context.purpose is Purpose.CONFIRM else "search",
            )
        )
        return {**dict(zip(checks, reply.checks, strict=False)), **dict(zip(timings, reply.timings, strict=False))}

    def _settle(
        self, context: EvaluationContext, step: _Step, answer: Checked | Measurement | None
    ) -> PartialEvaluation:
        """The result of one step; a new verdict is cached."""
        outcome = step.settled or answer or self._alone(context, step)
        is_new = not step.known
        if is_new and isinstance(outcome, Checked):
            outcome = self._second.second_opinion(
                outcome, step.plan, step.case, self._draws(context, step), context.runner
            )
        elif not isinstance(outcome, Checked) and (is_new or not outcome.baselines_us):
            outcome = self._baselines.hold(context.runner, step.case, outcome, context.deadline, soon=context.remeasure)
            # A plan timed without a check may be wrong, so its verdict is not cached.
            is_new = is_new and step.checked and not isinstance(outcome, Checked)
        verdict = step.verdict(outcome)
        if is_new:
            self.know([verdict])
        if step.checked and not step.known:
            outputs = step.plan.plan.outputs
            told = sum(view.elements * view.item_bytes for view in outputs) if step.timed else None
            self._seeds.answered(step.case.name, verdict.status is Status.WRONG, told)
        return PartialEvaluation(
            ended=_named(outcome, step.case) if isinstance(outcome, Checked) else PASSED,
            checks=(verdict.check,) if verdict.check is not None else (),
            measurements=(verdict.measurement,) if verdict.measurement is not None else (),
            plans=((step.case.name, step.knobs, step.plan.hash),),
            verdicts=(verdict,) if is_new else (),
        )

    def _alone(self, context: EvaluationContext, step: _Step) -> Checked | Measurement:
        draws = self._draws(context, step)
        if not step.timed:
            return context.runner.check(step.plan, step.case, draws)
        return context.runner.measure(step.plan, step.case, draws[0][0], step.checked, step.against_us)

    def retime(
        self, context: EvaluationContext, plans: Sequence[tuple[Case, CompiledPlan]], knobs: Knobs
    ) -> PartialEvaluation:
        """Time a tuned setting for its score, with outputs checked during timing. Raises CutShort."""
        partial = PartialEvaluation()
        for case, plan in plans:
            context.deadline.check()
            partial = partial.then(self._settle(context, self._step(context, plan, case, knobs, timed=True), None))
            if not partial.ended.passed:
                break
        return partial

    def timed_plans(self, recording: Recording) -> list[tuple[Case, CompiledPlan]]:
        """The plans of the source as written on the search cases; all of them, if the recording has no fault."""
        plans = [(case, recording.plans.get((case.name, ()))) for case in self.cases(CaseKind.SEARCH)]
        return [(case, plan) for case, plan in plans if isinstance(plan, CompiledPlan)]

    def check_at_size(
        self, context: EvaluationContext, plans: Sequence[tuple[Case, CompiledPlan]], regime: str
    ) -> PartialEvaluation:
        """Check plans of search cases, at full size, in a regime. Raises CutShort."""
        for case, plan in plans:
            context.deadline.check()
            seed = fresh_seed() if context.purpose is Purpose.CONFIRM else self._seeds.seed(case.name, regime)
            rounds = [(seed, regime)]
            outcome = self._second.second_opinion(
                context.runner.check(plan, case, rounds), plan, case, rounds, context.runner
            )
            self._seeds.answered(case.name, outcome.status is Status.WRONG, None)
            if not outcome.passed:
                verdict = PlanVerdict(case.name, plan.hash, outcome.status, outcome.reason)
                self.know([verdict])
                return PartialEvaluation(outcome, verdicts=(verdict,))
        return PartialEvaluation()

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


def _named(outcome: Checked, case: Case) -> Checked:
    """A failed check of a case with the case's name in its reason."""
    if outcome.status not in (Status.WRONG, Status.RUNTIME_ERROR, Status.TIMEOUT) or case.name in outcome.reason:
        return outcome
    return replace(outcome, reason=f"on {case.name}: {outcome.reason}")


def rule_fault(task: Task, case: Case, plan: CompiledPlan) -> str:
    """How a plan violates the task's ALLOW, as a sentence; empty if it does not."""
    if case.kind is CaseKind.CHECK and not any(output.elements for output in plan.plan.outputs):
        return ""  # such as no rows: a grid of no programs is no launch
    if not plan.plan.nodes:
        return "run launches nothing: its outputs are never computed"
    if task.allow == "kernels" and plan.plan.aten_nodes:
        names = sorted({node.op.removeprefix("aten.") for node in plan.plan.aten_nodes})
        return (
            f"run calls torch operations ({', '.join(names[:5])}); this task allows kernels only: "
            "compute it in a kernel, or set ALLOW = 'mixed' in the task"
        )
    if waiting := sorted({node.op.removeprefix("aten.") for node in plan.plan.aten_nodes if waits(node)}):
        return f"torch's {waiting[0]} waits for the GPU, so the launches cannot be timed as one: write a kernel for it"
    if not plan.plan.launches:
        return "run launches no kernel of its own"
    returned = len(plan.plan.outputs) - len(task.mutates)  # inputs changed in place may be copies of results
    if task.allow == "kernels" and (copied := [number for number in plan.plan.copied_outputs if number < returned]):
        return f"output {copied[0]} is a copy of a tensor: compute it in a kernel"
    shared = plan.plan.borrowed_outputs
    if shared and (borrowed := sorted(set(shared) - task.borrowed_outputs(case))):
        return (
            f"output {borrowed[0]} is a view of an input, shares its memory with another output, or several of its "
            "elements share theirs, where the reference returns a tensor of its own"
        )
    return ""


class SecondAssembler:
    """Another installed assembler, if there is one. Thread-safe; its process starts when it is first needed."""

    def __init__(self, assembler: Assembler, arch: int, deadline_s: float) -> None:
        self._first, self._arch, self._deadline_s = assembler, arch, deadline_s
        self._lock = threading.Lock()
        self._compiler: Compiler | None = None
        self._other: Assembler | None = None
        self._started_once = False

    def second_opinion(
        self, checked: Checked, plan: CompiledPlan, case: Case, rounds: Sequence[Round], runner: Runner
    ) -> Checked:
        """The same verdict; its reason tells whether the other assembler's code is correct."""
        assembled = runner.stages.gpus and any(binary.instructions.get("wgmma") for binary in plan.binaries)
        if checked.status is not Status.WRONG or not assembled:
            return checked
        compiler, other = self._started()
        if compiler is None or other is None:
            return checked
        binaries = compiler.compile(plan.plan.kernels)
        if any(isinstance(binary, str) for binary in binaries):
            return checked
        recompiled = CompiledPlan(
            plan=plan.plan, binaries=tuple(binary for binary in binaries if isinstance(binary, Binary))
        )
        right = runner.check(recompiled, case, rounds).passed
        verdict = "right" if right else "wrong too"
        reason = (
            f"{verdict} when assembled by ptxas {other.version}; wrong with {self._first.version}: {checked.reason}"
        )
        return replace(checked, reason=reason)

    def close(self) -> None:
        with self._lock:
            self._started_once = True
            if self._compiler is not None:
                self._compiler.close()

    def _started(self) -> tuple[Compiler | None, Assembler | None]:
        with self._lock:
            if not self._started_once:
                self._started_once, self._other = True, other_version(self._first)
                if self._other is not None:
                    self._compiler = Compiler(self._arch, self._deadline_s, assembler=self._other)
                    self._compiler.start()
            return self._compiler, self._other
