"""The judge: record → check → time or model → tune → score, cheapest first, each able to end it.

No candidate code runs here: sources become plans in confined children (record/), plans are executed by a runner
(runners/), and what was found out about a plan is kept, so that the same plan never costs twice.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness import regimes
from evo_kernel.fitness.baselines import faults_of
from evo_kernel.fitness.ceilings import Ceilings, KnownCeilings
from evo_kernel.fitness.compiling.compiler import Compiler
from evo_kernel.fitness.knobs import find_knobs
from evo_kernel.fitness.plan import CompiledPlan
from evo_kernel.fitness.profile import KernelProfile, alone, cost_of, profile
from evo_kernel.fitness.record.recorder import Fault, RecordCase, Recorder, Recording
from evo_kernel.fitness.references import SeedPool, fresh_seed
from evo_kernel.fitness.runners.base import Checked, CheckPart, Exam, Round, Runner, TimePart
from evo_kernel.fitness.runners.choose import open_runner
from evo_kernel.fitness.targets import target_for
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

RACE_LOG = math.log(1.25)  # a setting so far behind the best on the cases so far is not timed on the others


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
    anew: bool = False  # times are taken again, checks are not
    verdicts: list[PlanVerdict] = field(default_factory=list)
    checks: list[CheckResult] = field(default_factory=list)
    plans: list[tuple[str, Knobs, str]] = field(default_factory=list)
    charged: dict[str, int] = field(default_factory=dict)
    ahead: dict[tuple[str, str, str], Checked | Measurement] = field(default_factory=dict)
    """Answers that came with the first request, by (check or time, case, plan hash)."""


class PlanJudge:
    """The Judge of evo_kernel.types over plans. Thread-safe."""

    def __init__(self, task: Task, runner: Runner, settings: JudgeSettings) -> None:
        self._task, self._runner, self._settings = task, runner, settings
        self._compiler = Compiler(runner.arch, settings.deadline_s, runner.stages)
        self._recorder = Recorder(self._compiler, runner.arch, settings.deadline_s, runner.stages)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], PlanVerdict] = {}
        self._baselines: dict[str, Mapping[str, float]] = {}
        self._best_log_us = math.inf
        self._tuner = Tuner(settings.seed)
        self._seeds = SeedPool()
        self._baseline_lock = threading.Lock()
        self.environment: Environment
        self.known_ceilings: KnownCeilings
        self.stages = runner.stages
        self.on_baselines: Callable[[str, Mapping[str, float], Mapping[str, str]], None] = _nobody
        """Called once a case with its name, the baselines in µs, and why others could not be timed, by name."""

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
        self.known_ceilings = KnownCeilings(self._runner.ceilings, Ceilings.of_target(target_for(self._runner.arch)))

    @property
    def ceilings(self) -> Ceilings:
        """What shares of the speed of light refer to; measured now where nobody knew. Raises InfraError."""
        return self.known_ceilings.now

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

    def evaluate(self, source: Source, purpose: Purpose, anew: bool = False) -> Evaluation:
        """The verdict on one source; see types.Judge. Raises InfraError when the machine failed."""
        began, busy = time.monotonic(), self._runner.busy_s
        evaluation = self._evaluate(_Work(source, purpose, anew))
        return replace(evaluation, wall_s=time.monotonic() - began, gpu_s=self._runner.busy_s - busy)

    def plans(self, source: Source, knobs: Knobs, kinds: Sequence[CaseKind]) -> Mapping[str, CompiledPlan | Fault]:
        """Recorded plans by case: what export and --save-plan write."""
        recording = self._recorder.record(source, self._record_cases(kinds), [knobs])
        return {case: plan for (case, _), plan in recording.plans.items()}

    def profile(self, source: Source, knobs: Knobs, kinds: Sequence[CaseKind]) -> Mapping[str, list[KernelProfile]]:
        """What each launch does with the GPU, by case. Each is timed alone. Raises UserError with a source's fault."""
        target, found = target_for(self._runner.arch), {}
        for case in (case for kind in kinds for case in self._cases(kind)):
            recording = self._recorder.record(source, (record_case(self._task, case),), [knobs])
            plan = recording.plans[(case.name, knobs)]
            if isinstance(plan, Fault):
                raise UserError(f"{plan.status} on {case.name}: {plan.reason}")
            costs = []
            for position in range(len(plan.plan.launches)):
                timed = self._runner.measure(alone(plan, position), case, self._seeds.seed(case.name, "timed"), False)
                if isinstance(timed, Checked):
                    raise UserError(f"launch {position} of {case.name}, {timed.status}: {timed.reason}")
                costs.append(cost_of(timed, target, self.environment.kind))
            found[case.name] = profile(plan, costs, target)
        return found

    # --- one evaluation ---------------------------------------------------------------------------------------------

    def _evaluate(self, work: _Work) -> Evaluation:
        timed = {Purpose.PROBE: (), Purpose.CONFIRM: (CaseKind.CONFIRM,)}.get(work.purpose, (CaseKind.SEARCH,))
        recording = self._recorder.record(work.source, self._record_cases((CaseKind.CHECK, *timed)), [()])
        if recording.fault is not None:
            return self._ended(work, recording.fault.status, recording.fault.reason)
        self._ask_ahead(work, recording, timed)
        checked = self._check_setting(work, recording, ())
        if not checked.passed:
            return self._ended(work, checked.status, checked.reason)
        if not timed:
            return self._ended(work, Status.PASSED, "")
        measured = self._measure(work, recording, timed)
        if isinstance(measured, Checked):
            return self._ended(work, measured.status, measured.reason)
        knobs: Knobs = ()
        if work.purpose is Purpose.SCORE and not work.anew:
            knobs, measured = self._tune(work, recording, measured)
        return self._scored(work, knobs, measured)

    def _ask_ahead(self, work: _Work, recording: Recording, timed: Sequence[CaseKind]) -> None:
        """Ask the runner for all that is not known of the source's own setting in one request."""
        checks: list[CheckPart] = []
        timings: list[TimePart] = []
        for case in (case for kind in (CaseKind.CHECK, *timed) for case in self._cases(kind)):
            plan = recording.plans[(case.name, ())]
            if isinstance(plan, Fault) or self._rule_fault(plan):
                break  # ends the evaluation there
            known = None if work.purpose is Purpose.CONFIRM else self._find(case.name, plan.hash)
            if known is not None and known.status is not Status.PASSED:
                break
            if case.kind is CaseKind.CHECK and known is None:
                checks.append(CheckPart(plan, case, tuple(self._rounds(case, work.purpose))))
            elif case.kind is not CaseKind.CHECK and (work.anew or known is None or known.measurement is None):
                timings.append(TimePart(plan, case, self._timed_seed(case, work.purpose)))
        if not checks and not timings:
            return
        precision = "claim" if work.anew or work.purpose is Purpose.CONFIRM else "search"
        found = self._runner.exam(Exam(tuple(checks), tuple(timings), precision))
        for check, answer in zip(checks, found.checks, strict=False):
            if answer is not None:  # else it is asked again, alone
                work.ahead[("check", check.case.name, check.plan.hash)] = answer
        for timing, time_answer in zip(timings, found.timings, strict=False):
            if time_answer is not None:
                work.ahead[("time", timing.case.name, timing.plan.hash)] = time_answer

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
                checked = self._checked(work, plan, case)
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

    def _checked(self, work: _Work, plan: CompiledPlan, case: Case) -> Checked:
        fault = self._rule_fault(plan)
        if fault:
            return Checked(Status.REJECTED, fault)
        answer = work.ahead.pop(("check", case.name, plan.hash), None)
        return (
            answer if isinstance(answer, Checked) else self._runner.check(plan, case, self._rounds(case, work.purpose))
        )

    def _rounds(self, case: Case, purpose: Purpose) -> list[Round]:
        if purpose is Purpose.CONFIRM:
            return [(fresh_seed(), regime) for regime in regimes.CONFIRM]
        return [(self._seeds.seed(case.name, regime), regime) for regime in regimes.SEARCH]

    def _timed_seed(self, case: Case, purpose: Purpose) -> int:
        return fresh_seed() if purpose is Purpose.CONFIRM else self._seeds.seed(case.name, "timed")

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
        if self._task.allow == "kernels" and plan.plan.copied_outputs:
            return f"output {plan.plan.copied_outputs[0]} is a copy of a tensor: compute it in a kernel"
        return ""

    def _measure(self, work: _Work, recording: Recording, kinds: Sequence[CaseKind]) -> list[Measurement] | Checked:
        """Times of the source's own setting on every case; the first failure ends it."""
        measured: list[Measurement] = []
        for case in (case for kind in kinds for case in self._cases(kind)):
            plan = recording.plans[(case.name, ())]
            if isinstance(plan, Fault):
                return Checked(plan.status, plan.reason)
            work.plans.append((case.name, (), plan.hash))
            found = self._measured(work, plan, case, checked=True)
            if isinstance(found, Checked):
                return found
            measured.append(found)
        return measured

    def _measured(
        self, work: _Work, plan: CompiledPlan, case: Case, checked: bool, against_us: float | None = None
    ) -> Measurement | Checked:
        known = self._find(case.name, plan.hash)
        if known is not None and work.purpose is not Purpose.CONFIRM:
            if known.measurement is not None and not work.anew:
                return known.measurement
            if known.status is not Status.PASSED:
                return Checked(known.status, known.reason)
        fault = self._rule_fault(plan)
        found = work.ahead.pop(("time", case.name, plan.hash), None)
        if fault:
            found = Checked(Status.REJECTED, fault)
        elif found is None:
            found = self._runner.measure(plan, case, self._timed_seed(case, work.purpose), checked, against_us)
        if isinstance(found, Checked):
            if not found.of_text:
                self._keep(work, PlanVerdict(case.name, plan.hash, found.status, found.reason))
            return found
        found = replace(found, light_share=self._light_share(case, found), baselines_us=self._baselines_of(case, found))
        floor_us = self.known_ceilings.limits.floor_us(self._task.flops(case), self._task.bytes(case))
        if found.median_us * 1.25 < floor_us and self.environment.kind == "measured":
            reason = f"faster than light on {case.name}: {found.median_us:.2f} µs is less than its bytes and flops take"
            return Checked(Status.REJECTED, reason)
        if checked:  # else not remembered as right: a source may come whose own plan this is
            self._keep(work, PlanVerdict(case.name, plan.hash, Status.PASSED, "", None, found))
        return found

    def _tune(self, work: _Work, recording: Recording, own: list[Measurement]) -> tuple[Knobs, list[Measurement]]:
        """Try knob settings, raced over the search cases; the best that also checks is taken."""
        best_log = _mean_log(own)
        with self._lock:
            worth = best_log <= self._best_log_us + math.log(self._settings.tune_within)
        knobs = find_knobs(work.source, dict(recording.configs)) if worth else ()
        ranked: list[tuple[float, Knobs, list[Measurement], Recording]] = []
        for batch in self._tuner.batches(work.source, knobs, self._settings.tune_plans):
            tried = self._recorder.record(work.source, self._record_cases((CaseKind.SEARCH,)), batch)
            for setting in batch:
                found, cost = self._race(work, tried, setting, min([own, *(r[2] for r in ranked)], key=_mean_log))
                self._tuner.tell(work.source, setting, cost)
                if found and cost is not None and cost < best_log:
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

    def _race(
        self, work: _Work, tried: Recording, setting: Knobs, best: Sequence[Measurement]
    ) -> tuple[list[Measurement] | None, float | None]:
        """A setting's measurements and its cost (mean log µs), case by case until it is clearly behind the best so far.

        Measurements are None for one that fell behind, whose cost is extrapolated; cost is None for one that failed.
        """
        found: list[Measurement] = []
        for number, case in enumerate(self._cases(CaseKind.SEARCH), start=1):
            plan = tried.plans[(case.name, setting)]
            if isinstance(plan, Fault):
                return None, None
            work.plans.append((case.name, setting, plan.hash))
            measured = self._measured(work, plan, case, checked=False, against_us=best[number - 1].median_us)
            if isinstance(measured, Checked):
                return None, None
            found.append(measured)
            behind = _mean_log(found) - _mean_log(best[:number])
            if number < len(best) and behind > RACE_LOG:
                return None, _mean_log(best) + behind
        return found, _mean_log(found)

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
        with self._baseline_lock:  # many threads may ask first: they are timed once
            known = self._baselines.get(case.name)
            if known is None:
                known = dict(self._runner.baselines(case)) or {"first kernel": self._first_kernel_us(case, found)}
                self._baselines[case.name] = known
                self.on_baselines(case.name, known, faults_of(case, self._runner.baseline_faults))
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
        flops, moved = self._task.flops(case), self._task.bytes(case)
        if flops is None and moved is None:
            return None
        return self.ceilings.light_us(flops, moved) / found.median_us

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
    gpus: str = "1",
) -> PlanJudge:
    """A judge that is running; use it as a context manager. `device`: auto, cpu (modeled) or cuda (measured).

    `gpus`: how many of this machine's GPUs, a number or all.
    """
    settings = settings or JudgeSettings()
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    judge = PlanJudge(task, open_runner(task, device, settings.deadline_s, gpus), settings)
    try:
        judge.start()
    except BaseException:
        judge.close()
        raise
    return judge


def record_case(task: Task, case: Case) -> RecordCase:
    """A task's case as the recorder takes it."""
    specs: list[Mapping[str, object]] = []
    known = task.host_values(case) if task.host_known else {}
    for position, spec in enumerate(task.input_specs(case)):
        if not isinstance(spec, TensorSpec):
            specs.append({"value": spec})
            continue
        host = {"host": known[position].tolist()} if position in known else {}
        specs.append({"dtype": spec.dtype, "shape": list(spec.shape), "strides": list(spec.strides), **host})
    return RecordCase(case.name, tuple(specs))


def _nobody(*told: object) -> None:
    del told


def _result(case: Case, checked: Checked) -> CheckResult:
    return CheckResult(case.name, checked.passed, checked.error, checked.reason)


def _mean_log(measured: Sequence[Measurement]) -> float:
    return math.fsum(math.log(m.median_us) for m in measured) / len(measured)
