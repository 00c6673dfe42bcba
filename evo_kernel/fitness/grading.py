"""Grading: plans of one knob setting, checked and timed case by case, and what is known of them already.

What was found out about a plan is kept, so that the same plan never costs twice.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence

from evo_kernel.errors import EvoKernelError
from evo_kernel.fitness.compile.second_assembler import SecondOpinion
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.correctness.references import SeedPool, fresh_seed
from evo_kernel.fitness.evaluation_context import PASSED, EvaluationContext
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.record.cases import record_case
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, Recording
from evo_kernel.fitness.runners.base import Checked, CheckPart, Exam, Round, Runner, TimePart
from evo_kernel.fitness.timing.reference_times import Yardsticks
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, CheckResult, Knobs, Measurement, PlanVerdict, Purpose, Source, Status

_AHEAD = 2
"""Timed cases whose references are made before a kernel is there: inputs of no more than a few are kept."""


class Grader:
    """Checks and times recorded plans of one task. Thread-safe: what belongs to one evaluation is in its Work."""

    def __init__(self, task: Task, recorder: Recorder, yardsticks: Yardsticks, second: SecondOpinion) -> None:
        self._task, self._recorder, self._yardsticks = task, recorder, yardsticks
        self._second = second
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], PlanVerdict] = {}
        self._seeds = SeedPool()

    def know(self, verdicts: Iterable[PlanVerdict]) -> None:
        """Take in what an earlier run found out about plans in this environment."""
        for verdict in verdicts:
            self._known[(verdict.case, verdict.plan)] = verdict
            if verdict.measurement is not None:
                self._yardsticks.know(verdict.measurement)

    def find(self, case: str, plan: str) -> PlanVerdict | None:
        with self._lock:
            return self._known.get((case, plan))

    def keep(self, work: EvaluationContext, verdict: PlanVerdict) -> None:
        work.verdicts.append(verdict)
        with self._lock:
            self._known[(verdict.case, verdict.plan)] = verdict

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

    def ask_ahead(self, work: EvaluationContext, recording: Recording, timed: Sequence[CaseKind]) -> None:
        """Ask the runner for all that is not known of the source's own setting in one request."""
        checks: list[CheckPart] = []
        timings: list[TimePart] = []
        for case in (case for kind in (CaseKind.CHECK, *timed) for case in self.cases(kind)):
            plan = recording.plans[(case.name, ())]
            if isinstance(plan, RecordFault) or rule_fault(self._task, plan):
                break  # ends the evaluation there
            known = None if work.purpose is Purpose.CONFIRM else self.find(case.name, plan.hash)
            if known is not None and known.status is not Status.PASSED:
                break
            if case.kind is CaseKind.CHECK and known is None:
                checks.append(CheckPart(plan, case, tuple(self._rounds(case, work.purpose))))
            elif case.kind is not CaseKind.CHECK and (work.anew or known is None or known.measurement is None):
                timings.append(TimePart(plan, case, self._timed_seed(case, work.purpose)))
        if not checks and not timings:
            return
        precision = "claim" if work.anew or work.purpose is Purpose.CONFIRM else "search"
        found = work.runner.exam(Exam(tuple(checks), tuple(timings), precision))
        for check, answer in zip(checks, found.checks, strict=False):
            if answer is not None:  # else it is asked again, alone
                work.ahead[("check", check.case.name, check.plan.hash)] = answer
        for timing, time_answer in zip(timings, found.timings, strict=False):
            if time_answer is not None:
                work.ahead[("time", timing.case.name, timing.plan.hash)] = time_answer

    def check_setting(self, work: EvaluationContext, recording: Recording, knobs: Knobs) -> Checked:
        """Check every check case of one knob setting; the first failure ends it. Raises CutShort."""
        fresh = work.purpose is Purpose.CONFIRM
        charged, checked = False, PASSED
        for case in self.cases(CaseKind.CHECK):
            work.deadline.check()
            plan = recording.plans[(case.name, knobs)]
            if isinstance(plan, RecordFault):
                return Checked(plan.status, plan.reason)
            work.plans.append((case.name, knobs, plan.hash))
            known = self.find(case.name, plan.hash)
            if known is not None and not fresh:
                checked = Checked(known.status, known.reason, known.check.error if known.check else 0.0)
            else:
                charged = True
                checked = self._checked(work, plan, case)
                if not checked.of_text:
                    verdict = PlanVerdict(case.name, plan.hash, checked.status, checked.reason, _result(case, checked))
                    self.keep(work, verdict)
            work.checks.append(_result(case, checked))
            if not checked.passed:
                break
        if charged:
            purpose = Purpose.TUNE if knobs else work.purpose
            work.charged[purpose] = work.charged.get(purpose, 0) + 1
        return checked

    def _checked(self, work: EvaluationContext, plan: CompiledPlan, case: Case) -> Checked:
        fault = rule_fault(self._task, plan)
        if fault:
            return Checked(Status.REJECTED, fault)
        answer = work.ahead.pop(("check", case.name, plan.hash), None)
        rounds = self._rounds(case, work.purpose)
        found = answer if isinstance(answer, Checked) else work.runner.check(plan, case, rounds)
        return self._second.on(found, plan, case, rounds, work.runner)

    def measure(
        self, work: EvaluationContext, recording: Recording, kinds: Sequence[CaseKind]
    ) -> list[Measurement] | Checked:
        """Times of the source's own setting on every case; the first failure ends it. Raises CutShort."""
        measured: list[Measurement] = []
        for case in (case for kind in kinds for case in self.cases(kind)):
            work.deadline.check()
            plan = recording.plans[(case.name, ())]
            if isinstance(plan, RecordFault):
                return Checked(plan.status, plan.reason)
            work.plans.append((case.name, (), plan.hash))
            found = self.measured(work, plan, case, checked=True)
            if isinstance(found, Checked):
                return found
            measured.append(found)
        return measured

    def measured(
        self, work: EvaluationContext, plan: CompiledPlan, case: Case, checked: bool, against_us: float | None = None
    ) -> Measurement | Checked:
        known = self.find(case.name, plan.hash)
        if known is not None and work.purpose is not Purpose.CONFIRM:
            if known.measurement is not None and not work.anew:
                return known.measurement
            if known.status is not Status.PASSED:
                return Checked(known.status, known.reason)
        fault = rule_fault(self._task, plan)
        found = work.ahead.pop(("time", case.name, plan.hash), None)
        if fault:
            found = Checked(Status.REJECTED, fault)
        elif found is None:
            found = work.runner.measure(plan, case, self._timed_seed(case, work.purpose), checked, against_us)
        if isinstance(found, Checked):
            rounds = [(self._timed_seed(case, work.purpose), "nominal")]
            found = self._second.on(found, plan, case, rounds, work.runner)
            if not found.of_text:
                self.keep(work, PlanVerdict(case.name, plan.hash, found.status, found.reason))
            return found
        found = self._yardsticks.hold(work.runner, case, found)
        if isinstance(found, Checked):
            return found
        if checked:  # else not remembered as right: a source may come whose own plan this is
            self.keep(work, PlanVerdict(case.name, plan.hash, Status.PASSED, "", None, found))
        return found

    def right_when_timed(self, work: EvaluationContext, plans: Sequence[tuple[Case, CompiledPlan]]) -> bool:
        """Whether plans of a tuned setting are right at full size too."""
        for case, plan in plans:
            rounds: list[Round] = [(self._seeds.seed(case.name, "timed"), "nominal")]
            if not work.runner.check(plan, case, rounds).passed:
                return False
        return True

    def right_when_wide(self, work: EvaluationContext, recording: Recording) -> Checked:
        """Checks at the sizes that scores are of, of values that are not nominal. Raises CutShort."""
        for case in self.cases(CaseKind.SEARCH):
            work.deadline.check()
            plan = recording.plans[(case.name, ())]
            if isinstance(plan, RecordFault):
                return Checked(plan.status, plan.reason)
            rounds = [(fresh_seed(), regimes.WIDE)]
            found = self._second.on(work.runner.check(plan, case, rounds), plan, case, rounds, work.runner)
            if not found.passed:
                return found
        return PASSED

    def stays_modeled(
        self, work: EvaluationContext, plans: Sequence[tuple[Case, CompiledPlan]], found: Sequence[Measurement]
    ) -> bool:
        """Whether modeled times still hold once the plans have been executed: what was counted may have been less."""
        for (case, plan), before in zip(plans, found, strict=True):
            if before.n == 0:  # modeled, not measured
                after = work.runner.measure(plan, case, 0, checked=False)
                if isinstance(after, Checked) or after.median_us > before.median_us:
                    return False
        return True

    def _rounds(self, case: Case, purpose: Purpose) -> list[Round]:
        if purpose is Purpose.CONFIRM:
            return [(fresh_seed(), regime) for regime in regimes.CONFIRM]
        return [(self._seeds.seed(case.name, regime), regime) for regime in regimes.SEARCH]

    def _timed_seed(self, case: Case, purpose: Purpose) -> int:
        return fresh_seed() if purpose is Purpose.CONFIRM else self._seeds.seed(case.name, "timed")


def _result(case: Case, checked: Checked) -> CheckResult:
    return CheckResult(case.name, checked.passed, checked.error, checked.reason)


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
