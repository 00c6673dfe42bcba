"""The judge: evaluates a source by recording, checking, timing (or modeling) and tuning it, and confirms champions.

Steps run in this order, cheapest first; a failed step ends the evaluation. No candidate code runs here: confined
children turn sources into plans (record/), and a runner executes the plans (runners/). Verdicts are cached by plan.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from evo_kernel.deadline import Deadline
from evo_kernel.errors import BadDraw, EvoKernelError, InfraError, PlanError, UserError
from evo_kernel.fitness.compile.assembler import BUNDLED, assembler_of
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.correctness import regimes
from evo_kernel.fitness.correctness.references import fresh_seed
from evo_kernel.fitness.costmodel.targets import target_for
from evo_kernel.fitness.evaluation_context import EvaluationContext, PartialEvaluation, mean_log
from evo_kernel.fitness.gpus import usable_cores
from evo_kernel.fitness.grading import Grader, SecondAssembler
from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.fitness.profiling.compile_report import CompileReport, compile_report
from evo_kernel.fitness.profiling.counters import CountPart
from evo_kernel.fitness.profiling.profiler import CaseProfile, Profiler
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, Recording, record_case, refuse_unconfined
from evo_kernel.fitness.runners.base import IN_FULL_S, Checked, Runner
from evo_kernel.fitness.runners.choose import open_runner
from evo_kernel.fitness.timing.baseline_times import BaselineTimes
from evo_kernel.fitness.timing.ceilings import Ceilings, KnownCeilings
from evo_kernel.fitness.timing.confirmation import Confirmer
from evo_kernel.fitness.timing.measurement_cache import MeasurementCache, cache_key
from evo_kernel.fitness.tuning.configurations import check_others
from evo_kernel.fitness.tuning.tuning import Tuning
from evo_kernel.tasks.task import Case, Task, positional_names
from evo_kernel.types import CaseKind, Environment, Evaluation, Knobs, PlanVerdict, Purpose, Source, Status

_DRAWS = 3
"""Of inputs, that a reference may refuse one after the other."""


@dataclass(frozen=True)
class JudgeSettings:
    """Settings of the judge, for each candidate."""

    deadline_s: float = 60.0  # of one recording, one compile, one check
    tune_plans: int = 8  # knob settings to try in addition to the source's own
    tune_within: float = 1.5  # tune only sources within this factor of the best time; its root after a round, ...
    seed: int = 0  # of the tuner; the seeds of checks are secret
    every_configuration: bool = False  # check all autotune configurations, not only the one that is timed
    unconfined: bool = False  # continue if the recorder cannot be confined at all
    assembler: str = BUNDLED  # or "package", or a path; see compile/assembler.py


class PlanJudge:
    """Implements the Judge protocol of evo_kernel.types with launch plans. Thread-safe."""

    def __init__(self, task: Task, runner: Runner, settings: JudgeSettings) -> None:
        self._task, self._runner, self._settings = task, runner, settings
        self.stages = runner.stages
        self._assembler = assembler_of(settings.assembler)
        self._compiler = Compiler(runner.arch, settings.deadline_s, self.stages, self._assembler)
        self._second = SecondAssembler(self._assembler, runner.arch, settings.deadline_s)
        self._recorder = Recorder(
            self._compiler, runner.arch, settings.deadline_s, self.stages, lambda: task.output_orders
        )
        self.baselines = BaselineTimes(task, self._recorder)
        self._grader = Grader(task, self._recorder, self.baselines, self._second)
        self.baselines.compiled.find = self._grader.find
        self._tuning = Tuning(self._grader, settings.seed, settings.tune_within)
        self._confirmer = Confirmer(task, self._grader)
        self._prefetch_thread: threading.Thread | None = None
        self.environment: Environment

    def start(self, score_soon: bool = False) -> None:
        """Start all processes in parallel and determine the environment. Raises InfraError, UserError.

        `score_soon`: a score follows; its references are computed while the processes start.
        """
        if score_soon:
            self._prefetch_thread = threading.Thread(
                target=self._grader.prepare_references, args=(self._runner,), daemon=True
            )
            self._prefetch_thread.start()
        with ThreadPoolExecutor(3) as pool:
            try:
                for done in [pool.submit(part.start) for part in (self._runner, self._compiler, self._recorder)]:
                    done.result()
            except BaseException:  # also on an interrupt: do not wait for the other parts
                self.close()
                raise
        confinement = self._recorder.confinement
        if not self._settings.unconfined:
            refuse_unconfined(confinement)
        self.environment = replace(self._runner.environment(confinement), assembler=self._assembler.version)
        table = Ceilings.of_target(target_for(self._runner.arch))
        key, measured = cache_key(self.environment, self._runner.card), self.environment.kind == "measured"
        known = KnownCeilings(self._runner.ceilings, table, MeasurementCache(key) if measured else None)
        self.baselines.start(known, measured, key | {"assembler": self._assembler.version})
        if score_soon and not measured:
            self.baselines.compiled.ready()

    @property
    def ceilings(self) -> Ceilings:
        """Ceilings of the GPU; measured now if they are not cached. Raises InfraError."""
        return self.baselines.ceilings.now

    def know(self, verdicts: Iterable[PlanVerdict]) -> None:
        """Add an earlier run's verdicts of this environment to the cache."""
        self._grader.know(verdicts)

    def close(self) -> None:
        """Kill every process. Idempotent; evaluations in flight end as infra errors."""
        self._recorder.close()
        self._compiler.close()
        self._second.close()
        self._runner.close()
        if self._prefetch_thread is not None:
            self._prefetch_thread.join()  # a thread inside torch would crash the interpreter at exit

    def __enter__(self) -> PlanJudge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def evaluate(
        self,
        source: Source,
        purpose: Purpose,
        remeasure: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        """Evaluate one source; see types.Judge. Raises InfraError if the machine failed, CutShort."""
        began, busy = time.monotonic(), self._runner.busy_s
        context = EvaluationContext(
            source, purpose, self._runner, remeasure, self._settings.tune_plans * effort, thorough=effort > 1,
            deadline=deadline or Deadline(),
        )  # fmt: skip
        try:
            evaluation = self._to_evaluation(context, self._with_good_draws(context, against))
        except PlanError as error:
            evaluation = self._to_evaluation(context, PartialEvaluation(Checked(Status.REJECTED, str(error))))
        except EvoKernelError:
            raise
        except (MemoryError, OSError) as error:
            raise InfraError(f"this machine failed while it judged: {error!r}") from error
        # Any other exception becomes the candidate's verdict: a candidate must not end a run.
        except Exception as error:  # noqa: BLE001
            reason = f"the judge raised an exception on it: {_in_a_line(error)}"
            evaluation = self._to_evaluation(context, PartialEvaluation(Checked(Status.RUNTIME_ERROR, reason)))
        return replace(evaluation, wall_s=time.monotonic() - began, gpu_s=self._runner.busy_s - busy)

    def evaluate_all(self, sources: Sequence[Source], purpose: Purpose) -> list[Evaluation]:
        """Evaluations in the order of the sources, as many side by side as there are usable cores; confirmations in
        turn."""
        with ThreadPoolExecutor(1 if purpose is Purpose.CONFIRM else usable_cores()) as threads:
            return list(threads.map(lambda source: self.evaluate(source, purpose), sources))

    def plans(
        self, source: Source, knobs: Knobs, kinds: Sequence[CaseKind]
    ) -> Mapping[str, CompiledPlan | RecordFault]:
        """Recorded plans by case, for export and --save-plan."""
        return {case: plan for (case, _), plan in self._grader.record(source, kinds, [knobs]).plans.items()}

    def checked_in_full(self, plan: CompiledPlan, case: Case) -> Checked | None:
        """The verdict on all outputs of a case, or None if that takes long without a GPU; for export."""
        return self._runner.check_in_full(plan, case, IN_FULL_S)

    def profile(
        self,
        source: Source,
        knobs: Knobs,
        kinds: Sequence[CaseKind],
        counters: bool | None = None,
        case_name: str | None = None,
    ) -> Mapping[str, CaseProfile]:
        """Profile each launch, by case; see fitness/profiling/profiler.py. Raises UserError if the source is faulty."""
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

    def compiled(self, source: Source, case_name: str | None = None) -> CompileReport:
        """What the machine code of a source needs and does, for one case (the first search case); nothing is run."""
        limits = self._settings.deadline_s, self._settings.unconfined
        return compile_report(self._task, source, case_name, self._runner.arch, self._assembler, *limits)

    # --- one evaluation ---------------------------------------------------------------------------------------------

    def _with_good_draws(self, context: EvaluationContext, champion: Source | None) -> PartialEvaluation:
        """Evaluate; again with other inputs where the reference fails on those that were drawn."""
        why = ""
        for _ in range(_DRAWS):
            try:
                return (
                    self._confirm(context, champion) if context.purpose is Purpose.CONFIRM else self._evaluate(context)
                )
            except BadDraw as bad:
                why = str(bad)
                self._grader.draw_anew()
        reason = f"the reference fails on its own inputs, {_DRAWS} times in a row: {why}"
        return PartialEvaluation(Checked(Status.REJECTED, reason))

    def _evaluate(self, context: EvaluationContext) -> PartialEvaluation:
        timed = () if context.purpose is Purpose.PROBE else (CaseKind.SEARCH,)
        recording = self._grader.record(context.source, (CaseKind.CHECK, *timed))
        partial = self._grader.grade(context, recording, timed=timed)
        if not partial.ended.passed or context.purpose is not Purpose.SCORE:
            return partial
        partial = self._other_configurations(context, recording, partial)
        if not partial.ended.passed:
            return partial
        if context.remeasure:  # of roots, too: the slower one of two is not worth tuning
            self._tuning.note_best(mean_log(partial.measurements))
            return partial
        tuned = self._tuning.tune(context, recording, partial)
        return replace(tuned, ended=partial.ended) if tuned.ended.passed else tuned

    def _other_configurations(
        self, context: EvaluationContext, recording: Recording, partial: PartialEvaluation
    ) -> PartialEvaluation:
        if not self._settings.every_configuration or context.remeasure:
            return partial
        return check_others(self._grader, context, recording, partial)

    def _confirm(self, context: EvaluationContext, champion: Source | None) -> PartialEvaluation:
        """Check and time on hidden cases with fresh seeds, then compare with opponents in pairs, in a fresh runner."""
        recording = self._grader.record(context.source, (CaseKind.CHECK, CaseKind.CONFIRM, CaseKind.SEARCH))
        opponents = self._confirmer.opponents(champion)
        claimed = self._confirmer.claims(recording, opponents)  # before anything is measured again
        cases = self._grader.cases(CaseKind.CONFIRM)
        shown = [case for case in cases if case.kind is not CaseKind.CONFIRM]
        self.baselines.prepare(self._runner, shown, context.deadline)
        timed = self._grader.timed_plans(recording)
        with self._runner.fresh() as runner, ThreadPoolExecutor(1) as beside:
            context = replace(context, runner=runner)

            def others() -> PartialEvaluation:
                self.baselines.prepare(runner, cases, context.deadline)  # of a process that ran no candidate's kernel
                return self._check_at_size(context, timed)

            # A modeled time does not depend on what else is at work, and one core would idle meanwhile.
            wide = beside.submit(others) if self.environment.kind == "modeled" else None
            if wide is None:
                self.baselines.prepare(runner, cases, context.deadline)
            partial = self._grader.grade(context, recording, timed=(CaseKind.CONFIRM,))
            if partial.ended.passed:
                partial = partial.then(wide.result() if wide else self._check_at_size(context, timed))
            if partial.ended.passed:
                partial = self._other_configurations(context, recording, partial)
            if not partial.ended.passed:
                return partial
            return partial.then(self._confirmer.compare(context, recording, opponents, claimed))

    def _check_at_size(
        self, context: EvaluationContext, timed: Sequence[tuple[Case, CompiledPlan]]
    ) -> PartialEvaluation:
        """Check plans of search cases, which may take paths of their own, with wide values; one with each of others."""
        partial = self._grader.check_at_size(context, timed, regimes.WIDE)
        for regime in regimes.others(self._task, timed[0][0]) if timed else ():
            if not partial.ended.passed:
                break
            partial = partial.then(self._grader.check_at_size(context, [secrets.choice(timed)], regime))
        return partial

    def _to_evaluation(self, context: EvaluationContext, partial: PartialEvaluation) -> Evaluation:
        reason = with_names(partial.ended.reason, positional_names(self._task.reference_function), context.source.text)
        partial = replace(partial, ended=replace(partial.ended, reason=reason))
        return partial.evaluation(context, self._task.identity, self.environment)


def _in_a_line(error: Exception) -> str:
    """An exception as one line with its place in our code, for bug reports."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {str(error)[:400]} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


_INPUT, _LINE = re.compile(r"\binput (\d+)\b"), re.compile(r"\(line (\d+)")
_LONGEST_LINE = 120


def with_names(reason: str, parameters: Sequence[str], text: str) -> str:
    """A reason with the names of the inputs that it numbers and the text of the source's lines that it numbers."""

    def name(found: re.Match[str]) -> str:
        number = int(found[1])
        return f"{found[0]} ({parameters[number]})" if number < len(parameters) else found[0]

    def quote(found: re.Match[str]) -> str:
        number = int(found[1])
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        return f"{found[0]}: `{line}`" if 0 < len(line) <= _LONGEST_LINE else found[0]

    lines = text.splitlines()
    return _LINE.sub(quote, _INPUT.sub(name, reason))


def open_judge(
    task: Task,
    *,
    device: str = "auto",
    settings: JudgeSettings | None = None,
    gpus: str = "1",
    score_soon: bool = False,
) -> PlanJudge:
    """Open and start a judge; use it as a context manager. `device`: auto, cpu (modeled) or cuda (measured).

    `gpus`: how many of this machine's GPUs, a number or all. `score_soon`: see `PlanJudge.start`.
    """
    settings = settings or JudgeSettings()
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    judge = PlanJudge(task, open_runner(task, device, settings.deadline_s, gpus), settings)
    try:
        judge.start(score_soon)
    except BaseException:
        judge.close()
        raise
    return judge
