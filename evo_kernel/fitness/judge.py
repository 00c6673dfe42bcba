"""The judge: record → check → time or model → tune → score, cheapest first, each able to end it;
confirm, for champions.

No candidate code runs here: sources become plans in confined children (record/), plans are executed by a runner
(runners/), and what was found out about a plan is kept, so that the same plan never costs twice.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from evo_kernel.deadline import Deadline
from evo_kernel.errors import EvoKernelError, InfraError, PlanError, UserError
from evo_kernel.fitness.compile.assembler import BUNDLED, assembler_of
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.compile.second_assembler import SecondOpinion
from evo_kernel.fitness.correctness.references import fresh_seed
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.evaluation_context import EvaluationContext, Findings
from evo_kernel.fitness.grading import Grader
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.profiling.counters import CountPart
from evo_kernel.fitness.profiling.profiler import Profiler
from evo_kernel.fitness.profiling.table import CaseProfile
from evo_kernel.fitness.record.cases import record_case
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, refuse_unconfined
from evo_kernel.fitness.runners.base import Checked, Runner
from evo_kernel.fitness.runners.choose import open_runner
from evo_kernel.fitness.timing.baseline_times import BaselineTimes
from evo_kernel.fitness.timing.ceilings import Ceilings, KnownCeilings
from evo_kernel.fitness.timing.confirmation import Confirming
from evo_kernel.fitness.timing.reference_cache import Remembered, circumstances
from evo_kernel.fitness.tuning.tuning import Tuning
from evo_kernel.tasks.first import Wanted
from evo_kernel.tasks.task import Task
from evo_kernel.types import (
    CaseKind,
    Environment,
    Evaluation,
    Knobs,
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
    tune_within: float = 1.5  # tune only what is within this factor of the best time seen; its root after a round, ...
    seed: int = 0  # of the tuner; correctness draws are secret
    unconfined: bool = False  # go on where the recorder cannot be confined at all
    assembler: str = BUNDLED  # or "package", or a path; see compiling/assembler.py
    first: Wanted = "auto"  # the first kernel that times and gains are told against


class PlanJudge:
    """The Judge of evo_kernel.types over plans. Thread-safe."""

    def __init__(self, task: Task, runner: Runner, settings: JudgeSettings) -> None:
        self._task, self._runner, self._settings = task, runner, settings
        self.stages = runner.stages
        self._assembler = assembler_of(settings.assembler)
        self._compiler = Compiler(runner.arch, settings.deadline_s, self.stages, self._assembler)
        self._second = SecondOpinion(self._assembler, runner.arch, settings.deadline_s)
        self._recorder = Recorder(self._compiler, runner.arch, settings.deadline_s, self.stages)
        self.baselines = BaselineTimes(task, self._recorder, settings.first)
        self._grader = Grader(task, self._recorder, self.baselines, self._second)
        self._tuning = Tuning(self._grader, settings.seed, settings.tune_within)
        self._confirming = Confirming(task, self._grader, settings.first)
        self._ahead: threading.Thread | None = None
        self.environment: Environment

    def start(self, soon: bool = False) -> None:
        """Start every process at once, and learn the environment. Raises InfraError, UserError.

        `soon`: a kernel is to be scored next. What it will be held against is made while processes start.
        """
        if soon:
            self._ahead = threading.Thread(target=self._grader.get_ready, args=(self._runner,), daemon=True)
            self._ahead.start()
        with ThreadPoolExecutor(3) as pool:
            try:
                for done in [pool.submit(part.start) for part in (self._runner, self._compiler, self._recorder)]:
                    done.result()
            except BaseException:  # an interrupt too: the others are not waited for
                self.close()
                raise
        walls = self._recorder.confinement
        if not self._settings.unconfined:
            refuse_unconfined(walls)
        self.environment = replace(self._runner.environment(walls), assembler=self._assembler.version)
        table = Ceilings.of_target(target_for(self._runner.arch))
        found, measured = circumstances(self.environment, self._runner.card), self.environment.kind == "measured"
        known = KnownCeilings(self._runner.ceilings, table, Remembered(found) if measured else None)
        self.baselines.start(known, measured, found | {"assembler": self._assembler.version})

    @property
    def ceilings(self) -> Ceilings:
        """What the GPU at hand can do at most; measured now where nobody knew. Raises InfraError."""
        return self.baselines.ceilings.now

    def know(self, verdicts: Iterable[PlanVerdict]) -> None:
        """Take in what an earlier run found out about plans in this environment."""
        self._grader.know(verdicts)

    def close(self) -> None:
        """Kill every process. Idempotent; evaluations in flight end as infra errors."""
        self._recorder.close()
        self._compiler.close()
        self._second.close()
        self._runner.close()
        if self._ahead is not None:
            self._ahead.join()  # a thread within torch would crash the interpreter's end

    def __enter__(self) -> PlanJudge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def evaluate(
        self,
        source: Source,
        purpose: Purpose,
        anew: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        """The verdict on one source; see types.Judge. Raises InfraError when the machine failed, CutShort."""
        began, busy = time.monotonic(), self._runner.busy_s
        context = EvaluationContext(
            source, purpose, self._runner, anew, self._settings.tune_plans * effort, thorough=effort > 1,
            deadline=deadline or Deadline(),
        )  # fmt: skip
        try:
            found = self._confirm(context, against) if purpose is Purpose.CONFIRM else self._evaluate(context)
            evaluation = self._told(context, found)
        except PlanError as error:
            evaluation = self._told(context, Findings(Checked(Status.REJECTED, str(error))))
        except EvoKernelError:
            raise
        except (MemoryError, OSError) as error:
            raise InfraError(f"this machine failed while it judged: {error!r}") from error
        # Whatever else a candidate brings about is its own verdict: it must never end a run.
        except Exception as error:  # noqa: BLE001
            reason = f"the judge stumbles over it: {_in_a_line(error)}"
            evaluation = self._told(context, Findings(Checked(Status.RUNTIME_ERROR, reason)))
        return replace(evaluation, wall_s=time.monotonic() - began, gpu_s=self._runner.busy_s - busy)

    def plans(
        self, source: Source, knobs: Knobs, kinds: Sequence[CaseKind]
    ) -> Mapping[str, CompiledPlan | RecordFault]:
        """Recorded plans by case: what export and --save-plan write."""
        return {case: plan for (case, _), plan in self._grader.record(source, kinds, [knobs]).plans.items()}

    def profile(
        self,
        source: Source,
        knobs: Knobs,
        kinds: Sequence[CaseKind],
        counters: bool | None = None,
        case_name: str | None = None,
    ) -> Mapping[str, CaseProfile]:
        """What each launch does with the GPU, by case (or of one); see fitness/profiler.py. Each is timed alone.

        Raises UserError with a source's fault.
        """
        parts, seed = [], fresh_seed()
        for case in (case for kind in kinds for case in self._grader.cases(kind) if case_name in (None, case.name)):
            recording = self._recorder.record(source, (record_case(self._task, case),), [knobs])
            plan = recording.plans[(case.name, knobs)]
            if isinstance(plan, RecordFault):
                raise UserError(f"{plan.status} on {case.name}: {plan.reason}")
            parts.append(CountPart(plan, case, seed))
        measured = self.environment.kind == "measured"
        profiler = Profiler(self._task, self._runner, self.ceilings, measured, self._settings.deadline_s)
        return profiler.profile(parts, counters)

    # --- one evaluation ---------------------------------------------------------------------------------------------

    def _evaluate(self, context: EvaluationContext) -> Findings:
        timed = () if context.purpose is Purpose.PROBE else (CaseKind.SEARCH,)
        recording = self._grader.record(context.source, (CaseKind.CHECK, *timed))
        found = self._grader.grade(context, recording, timed=timed)
        if found.ended.passed and context.purpose is Purpose.SCORE and not context.anew:
            found = self._tuning.tune(context, recording, found)
        return found

    def _confirm(self, context: EvaluationContext, champion: Source | None) -> Findings:
        """On hidden cases and by fresh seeds, then side by side with others: all of it by a fresh runner."""
        recording = self._grader.record(context.source, (CaseKind.CHECK, CaseKind.CONFIRM, CaseKind.SEARCH))
        opponents = self._confirming.opponents(champion)
        claimed = self._confirming.claims(recording, opponents)  # before anything is measured again
        self.baselines.prepare(self._runner, self._grader.cases(CaseKind.CONFIRM))
        with self._runner.fresh() as runner:
            context = replace(context, runner=runner)
            found = self._grader.grade(context, recording, timed=(CaseKind.CONFIRM,))
            if found.ended.passed:
                found = found.then(self._grader.right_when_wide(context, recording))
            if not found.ended.passed:
                return found
            return found.then(self._confirming.compare(context, recording, opponents, claimed))

    def _told(self, context: EvaluationContext, found: Findings) -> Evaluation:
        return found.evaluation(context, self._task.identity, self.environment)


def _in_a_line(error: Exception) -> str:
    """An exception in a line, with the place in our code: what a report of the bug needs."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {str(error)[:400]} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def open_judge(
    task: Task,
    *,
    device: str = "auto",
    settings: JudgeSettings | None = None,
    gpus: str = "1",
    soon: bool = False,
) -> PlanJudge:
    """A judge that is running; use it as a context manager. `device`: auto, cpu (modeled) or cuda (measured).

    `gpus`: how many of this machine's GPUs, a number or all. `soon`: a kernel is to be scored next.
    """
    settings = settings or JudgeSettings()
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    judge = PlanJudge(task, open_runner(task, device, settings.deadline_s, gpus), settings)
    try:
        judge.start(soon)
    except BaseException:
        judge.close()
        raise
    return judge
