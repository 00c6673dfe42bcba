"""The judge: record → check → time or model → tune → score, cheapest first, each able to end it.

No candidate code runs here: sources become plans in confined children (record/), plans are executed by a runner
(runners/), and what was found out about a plan is kept, so that the same plan never costs twice.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from evo_kernel.errors import InfraError
from evo_kernel.fitness import regimes
from evo_kernel.fitness.compiling.compiler import Compiler
from evo_kernel.fitness.knobs import find_knobs
from evo_kernel.fitness.plan import CompiledPlan
from evo_kernel.fitness.record.recorder import Fault, RecordCase, Recorder, Recording
from evo_kernel.fitness.references import SeedPool, fresh_seed
from evo_kernel.fitness.runners.base import Checked, Round, Runner
from evo_kernel.fitness.runners.choose import open_runner
from evo_kernel.fitness.tuner import Tuner
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.task import Case, Task, TensorSpec
from evo_kernel.types import (
    CaseKind,
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


@dataclass(frozen=True)
class JudgeSettings:
    """How much the judge does for one candidate."""

    deadline_s: float = 60.0  # of one recording, one compile, one check
    tune_plans: int = 8  # knob settings tried beyond the source's own; 0: none
    tune_within: float = 1.5  # tune only what is within this factor of the best time seen
    seed: int = 0  # of the tuner; correctness draws are secret
    unconfined: bool = False  # go on where the recorder cannot be confined at all


@dataclass
class _Work:
    """One evaluation in the making."""

    source: Source
    purpose: Purpose
    verdicts: list[PlanVerdict] = field(default_factory=list)
    checks: list[CheckResult] = field(default_factory=list)
    plans: list[tuple[str, Knobs, str]] = field(default_factory=list)
    charged: dict[str, int] = field(default_factory=dict)


class PlanJudge:
    """The Judge of evo_kernel.types over plans. Thread-safe."""

    def __init__(self, task: Task, runner: Runner, settings: JudgeSettings) -> None:
        self._task, self._runner, self._settings = task, runner, settings
        self._compiler = Compiler(runner.arch, settings.deadline_s)
        self._recorder = Recorder(self._compiler, runner.arch, settings.deadline_s)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], PlanVerdict] = {}
        self._baselines: dict[str, Mapping[str, float]] = {}
        self._best_log_us = math.inf
        self._tuner = Tuner(settings.seed)
        self._seeds = SeedPool()
        self.environment: Environment

    def start(self) -> None:
        """Start every process at once, and learn the environment. Raises InfraError, UserError."""
        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(part.start) for part in (self._runner, self._compiler, self._recorder)]:
                done.result()
        walls = self._recorder.confinement
        if walls in ("none", "rlimits", "unknown") and not self._settings.unconfined:
            raise InfraError(
                "this machine has no namespaces, no Landlock and no seccomp: candidate code cannot be confined. "
                "Run on a machine that has one of them, or accept the risk with --unconfined."
            )
        self.environment = self._runner.environment(walls)

    def know(self, verdicts: Iterable[PlanVerdict]) -> None:
        """Take in what an earlier run found out about plans in this environment."""
        for verdict in verdicts:
            self._known[(verdict.case, verdict.plan)] = verdict
            if verdict.measurement is not None:
                self._baselines.setdefault(verdict.case, dict(verdict.measurement.baselines_us))

    def close(self) -> None:
        """Kill every process. Idempotent; evaluations in flight end as infra errors."""
        self._recorder.close()
        self._compiler.close()
        self._runner.close()

    def __enter__(self) -> PlanJudge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def evaluate(self, source: Source, purpose: Purpose) -> Evaluation:
        """The verdict on one source. Raises InfraError when the machine failed."""
        began, busy = time.monotonic(), self._runner.busy_s
        evaluation = self._evaluate(_Work(source, purpose))
        return replace(evaluation, wall_s=time.monotonic() - began, gpu_s=self._runner.busy_s - busy)

    def plans(self, source: Source, knobs: Knobs, kinds: Sequence[CaseKind]) -> Mapping[str, CompiledPlan | Fault]:
        """Recorded plans by case: what export and --save-plan write."""
        recording = self._recorder.record(source, self._record_cases(kinds), [knobs])
        return {case: plan for (case, _), plan in recording.plans.items()}

    # --- one evaluation ---------------------------------------------------------------------------------------------

    def _evaluate(self, work: _Work) -> Evaluation:
        timed = {Purpose.PROBE: (), Purpose.CONFIRM: (CaseKind.CONFIRM,)}.get(work.purpose, (CaseKind.SEARCH,))
        recording = self._recorder.record(work.source, self._record_cases((CaseKind.CHECK, *timed)), [()])
        if recording.fault is not None:
            return self._ended(work, recording.fault.status, recording.fault.reason)
        checked = self._check_setting(work, recording, ())
        if not checked.passed:
            return self._ended(work, checked.status, checked.reason)
        if not timed:
            return self._ended(work, Status.PASSED, "")
        measured = self._measure_setting(work, recording, (), timed)
        if isinstance(measured, Checked):
            return self._ended(work, measured.status, measured.reason)
        knobs: Knobs = ()
        if work.purpose is Purpose.SCORE:
            knobs, measured = self._tune(work, recording, measured)
        return self._scored(work, knobs, measured)

    def _record_cases(self, kinds: Sequence[CaseKind]) -> tuple[RecordCase, ...]:
        return tuple(record_case(self._task, case) for kind in kinds for case in self._cases(kind))

    def _cases(self, kind: CaseKind) -> tuple[Case, ...]:
        found = self._task.cases_of(kind)
        return found or (self._task.cases_of(CaseKind.SEARCH) if kind is CaseKind.CONFIRM else ())

    def _check_setting(self, work: _Work, recording: Recording, knobs: Knobs) -> Checked:
        """Check every check case of one knob setting; the first failure ends it."""
        fresh = work.purpose is Purpose.CONFIRM
        charged, checked = False, Checked(Status.PASSED)
        for case in self._cases(CaseKind.CHECK):
            plan = recording.plans[(case.name, knobs)]
            if isinstance(plan, Fault):
                return Checked(plan.status, plan.reason)
            work.plans.append((case.name, knobs, plan.hash))
            known = self._find(case.name, plan.hash)
            if known is not None and not fresh:
                checked = Checked(known.status, known.reason, known.check.error if known.check else 0.0)
            else:
                charged = True
                checked = self._checked(plan, case, work.purpose)
                if not checked.of_text:
                    verdict = PlanVerdict(case.name, plan.hash, checked.status, checked.reason, _result(case, checked))
                    self._keep(work, verdict)
            work.checks.append(_result(case, checked))
            if not checked.passed:
                break
        if charged:
            purpose = Purpose.TUNE if knobs else work.purpose
            work.charged[purpose] = work.charged.get(purpose, 0) + 1
        return checked

    def _checked(self, plan: CompiledPlan, case: Case, purpose: Purpose) -> Checked:
        fault = self._rule_fault(plan)
        if fault:
            return Checked(Status.REJECTED, fault)
        wanted = regimes.CONFIRM if purpose is Purpose.CONFIRM else regimes.SEARCH
        if purpose is Purpose.CONFIRM:
            rounds: list[Round] = [(fresh_seed(), regime) for regime in wanted]
        else:
            rounds = [(self._seeds.seed(case.name, regime), regime) for regime in wanted]
        return self._runner.check(plan, case, rounds)

    def _rule_fault(self, plan: CompiledPlan) -> str:
        """What ALLOW forbids, in a sentence; empty when the plan keeps to it."""
        if not plan.plan.nodes:
            return "run launches nothing: its outputs are never computed"
        if self._task.allow == "kernels" and plan.plan.aten_nodes:
            names = sorted({node.op.removeprefix("aten.") for node in plan.plan.aten_nodes})
            return (
                f"run calls torch operations ({', '.join(names[:5])}); this task allows kernels only: "
                "compute it in a kernel, or set ALLOW = 'mixed' in the task"
            )
        if not plan.plan.launches:
            return "run launches no kernel of its own"
        return ""

    def _measure_setting(
        self, work: _Work, recording: Recording, knobs: Knobs, kinds: Sequence[CaseKind]
    ) -> list[Measurement] | Checked:
        measured: list[Measurement] = []
        for case in (case for kind in kinds for case in self._cases(kind)):
            plan = recording.plans[(case.name, knobs)]
            if isinstance(plan, Fault):
                return Checked(plan.status, plan.reason)
            work.plans.append((case.name, knobs, plan.hash))
            found = self._measured(work, plan, case, checked=not knobs)
            if isinstance(found, Checked):
                return found
            measured.append(found)
        return measured

    def _measured(self, work: _Work, plan: CompiledPlan, case: Case, checked: bool) -> Measurement | Checked:
        known = self._find(case.name, plan.hash)
        if known is not None and work.purpose is not Purpose.CONFIRM:
            if known.measurement is not None:
                return known.measurement
            if known.status is not Status.PASSED:
                return Checked(known.status, known.reason)
        fault = self._rule_fault(plan)
        seed = fresh_seed() if work.purpose is Purpose.CONFIRM else self._seeds.seed(case.name, "timed")
        found = Checked(Status.REJECTED, fault) if fault else self._runner.measure(plan, case, seed, checked)
        if isinstance(found, Checked):
            self._keep(work, PlanVerdict(case.name, plan.hash, found.status, found.reason))
            return found
        found = replace(found, light_share=self._light_share(case, found), baselines_us=self._baselines_of(case, found))
        if found.light_share is not None and found.light_share > 1.25 and self.environment.kind == "measured":
            reason = f"faster than light on {case.name}: {found.median_us:.2f} µs is less than its bytes and flops take"
            return Checked(Status.REJECTED, reason)
        if checked or self.environment.kind == "modeled":  # unchecked: not remembered as right
            self._keep(work, PlanVerdict(case.name, plan.hash, Status.PASSED, "", None, found))
        return found

    def _tune(self, work: _Work, recording: Recording, own: list[Measurement]) -> tuple[Knobs, list[Measurement]]:
        """Try knob settings, raced on the first search case; the best that also checks is taken."""
        best_log = _mean_log(own)
        with self._lock:
            worth = best_log <= self._best_log_us + math.log(self._settings.tune_within)
        knobs = find_knobs(work.source, dict(recording.configs)) if worth else ()
        ranked: list[tuple[float, Knobs, list[Measurement], Recording]] = []
        for setting in self._tuner.settings(work.source, knobs, self._settings.tune_plans):
            tried = self._recorder.record(work.source, self._record_cases((CaseKind.SEARCH,)), [setting])
            if tried.fault is not None:
                self._tuner.tell(work.source, setting, None)
                continue
            found = self._measure_setting(work, tried, setting, (CaseKind.SEARCH,))
            cost = None if isinstance(found, Checked) else _mean_log(found)
            self._tuner.tell(work.source, setting, cost)
            if cost is not None and not isinstance(found, Checked) and cost < best_log:
                ranked.append((cost, setting, found, tried))
        for cost, setting, found, tried in sorted(ranked, key=lambda item: item[0]):
            checks = self._recorder.record(work.source, self._record_cases((CaseKind.CHECK,)), [setting])
            if self._check_setting(work, checks, setting).passed and self._right_when_timed(tried, setting):
                self._note_best(cost)
                for m in found:
                    self._keep(work, PlanVerdict(m.case, m.plan, Status.PASSED, "", None, m))
                return setting, found
        self._note_best(best_log)
        return (), own

    def _right_when_timed(self, recording: Recording, knobs: Knobs) -> bool:
        """Whether a tuned setting is right on every search case too, at full size."""
        for case in self._cases(CaseKind.SEARCH):
            plan = recording.plans[(case.name, knobs)]
            rounds: list[Round] = [(self._seeds.seed(case.name, "timed"), "nominal")]
            if isinstance(plan, Fault) or not self._runner.check(plan, case, rounds).passed:
                return False
        return True

    def _note_best(self, log_us: float) -> None:
        with self._lock:
            self._best_log_us = min(self._best_log_us, log_us)

    # --- baselines, light, memory -----------------------------------------------------------------------------------

    def _baselines_of(self, case: Case, found: Measurement) -> Mapping[str, float]:
        """What a case is held against: the task's baselines where they can be timed, else the first kernel."""
        with self._lock:
            known = self._baselines.get(case.name)
        if known is None:
            known = dict(self._runner.baselines(case)) or {"first kernel": self._first_kernel_us(case, found)}
            with self._lock:
                self._baselines[case.name] = known
        return known

    def _first_kernel_us(self, case: Case, found: Measurement) -> float:
        """Time of the first kernel on a case; `found` is what is being held against it, often itself."""
        source = first_kernel(self._task)
        plan = self._recorder.record(source, (record_case(self._task, case),), [()]).plans[(case.name, ())]
        if isinstance(plan, Fault):
            raise InfraError(f"the task's first kernel does not record: {plan.reason}")
        if found.plan == plan.hash:
            return found.median_us
        first = self._runner.measure(plan, case, 0)
        if isinstance(first, Checked):
            raise InfraError(f"the task's first kernel cannot be timed: {first.reason}")
        return first.median_us

    def _light_share(self, case: Case, found: Measurement) -> float | None:
        from evo_kernel.fitness.targets import target_for

        target = target_for(self._runner.arch)
        flops, moved = self._task.flops(case), self._task.bytes(case)
        if flops is None and moved is None:
            return None
        light_us = max((flops or 0) / target.bf16_flops, (moved or 0) / target.copy_bytes_per_s) * 1e6
        return light_us / found.median_us

    def _find(self, case: str, plan: str) -> PlanVerdict | None:
        with self._lock:
            return self._known.get((case, plan))

    def _keep(self, work: _Work, verdict: PlanVerdict) -> None:
        work.verdicts.append(verdict)
        with self._lock:
            self._known[(verdict.case, verdict.plan)] = verdict

    # --- results ----------------------------------------------------------------------------------------------------

    def _ended(self, work: _Work, status: Status, reason: str) -> Evaluation:
        return self._evaluation(work, status, reason, (), [])

    def _scored(self, work: _Work, knobs: Knobs, measured: list[Measurement]) -> Evaluation:
        return self._evaluation(work, Status.PASSED, "", knobs, measured)

    def _evaluation(
        self, work: _Work, status: Status, reason: str, knobs: Knobs, measured: list[Measurement]
    ) -> Evaluation:
        speedups = [m.speedup for m in measured]
        score = math.exp(math.fsum(map(math.log, speedups)) / len(speedups)) if speedups else None
        return Evaluation(
            source=work.source.sha256,
            task=self._task.identity,
            purpose=work.purpose,
            environment=self.environment,
            status=status,
            reason=reason,
            score=score,
            knobs=knobs,
            checks=tuple(work.checks),
            measurements=tuple(measured),
            plans=tuple(dict.fromkeys(work.plans)),
            verdicts=tuple(work.verdicts),
            charged=dict(work.charged),
        )


def open_judge(
    task: Task,
    *,
    device: str = "auto",
    settings: JudgeSettings | None = None,
) -> PlanJudge:
    """A judge that is running; use it as a context manager. `device`: auto, cpu (modeled) or cuda (measured)."""
    settings = settings or JudgeSettings()
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    judge = PlanJudge(task, open_runner(task, device, settings.deadline_s), settings)
    try:
        judge.start()
    except BaseException:
        judge.close()
        raise
    return judge


def record_case(task: Task, case: Case) -> RecordCase:
    """A task's case as the recorder takes it."""
    specs: list[Mapping[str, object]] = []
    for spec in task.input_specs(case):
        if isinstance(spec, TensorSpec):
            specs.append({"dtype": spec.dtype, "shape": list(spec.shape), "strides": list(spec.strides)})
        else:
            specs.append({"value": spec})
    return RecordCase(case.name, tuple(specs))


def _result(case: Case, checked: Checked) -> CheckResult:
    return CheckResult(case.name, checked.passed, checked.error, checked.reason)


def _mean_log(measured: Sequence[Measurement]) -> float:
    return math.fsum(math.log(m.median_us) for m in measured) / len(measured)
