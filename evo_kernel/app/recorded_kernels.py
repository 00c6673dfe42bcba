"""Kernels recorded for export: champions as they were judged, and any source for a benchmark's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evo_kernel.app.export_selection import ExportedCandidate
from evo_kernel.errors import UserError
from evo_kernel.fitness.compile.assembler import assembler_of, of_version
from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, save_plan_file
from evo_kernel.fitness.plan.program import program
from evo_kernel.fitness.record.recorder import RecordCase, Recorder, RecordFault, record_case, refuse_unconfined
from evo_kernel.fitness.runners.choose import arch_of
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Case, Task
from evo_kernel.types import CaseKind, Environment, Knobs, Source, Status

DEADLINE_S = 60.0
"""Of recording or compiling one kernel that is written for a benchmark."""


@dataclass(frozen=True)
class RecordedCandidate:
    """The same, recorded again: what is written is what was judged."""

    chosen: ExportedCandidate
    name: str
    source: Source  # with the chosen knobs written in
    plans: Mapping[str, CompiledPlan]  # by case
    compared: frozenset[str]  # cases whose plans were judged, and all their outputs compared
    same_versions: bool  # whether the plans could be compared with the judged ones


def record(
    chosen: Sequence[ExportedCandidate], device: str, unconfirmed: bool, say: Callable[[str], None]
) -> tuple[Task, list[RecordedCandidate]]:
    """Record candidates of one population again. Raises UserError where plans are not the judged ones.

    `unconfirmed`: also what another version of the compiler makes, which cannot be compared. `say`: of what takes a
    CPU minutes.
    """
    if not chosen[0].task:
        raise UserError(f"{chosen[0].population} does not say what its task is: export from a file that `run` made")
    task = load(chosen[0].task)
    if task.identity != chosen[0].evaluation.task:
        raise UserError(
            f"{chosen[0].population} holds a search on another task than {chosen[0].task} is now: restore that file, "
            "or start a new run"
        )
    assembler = of_version(chosen[0].evaluation.environment.assembler)
    settings = JudgeSettings(tune_plans=0, assembler=str(assembler.path))
    with open_judge(task, device=device, settings=settings) as judge:
        found = [_recorded(one, task, judge, unconfirmed, say) for one in chosen]
    return task, found


def recorded_launches(task: Task, source: Source, device: str) -> dict[str, Any]:
    """A source's launches on all cases of a task as a program (fitness/program.py). They are recorded, not judged.

    Values that host code did not read may be others where it runs: whoever judges it draws them.

    Raises UserError where one cannot be recorded, InfraError where it cannot be confined.
    """
    arch = arch_of(device)
    compiler = Compiler(arch, DEADLINE_S, assembler=assembler_of(JudgeSettings().assembler))
    recorder = Recorder(compiler, arch, DEADLINE_S)
    try:
        recorder.start()
        refuse_unconfined(recorder.confinement)
        cases = [record_case(task, case) for case in task.cases]
        plans = {case: plan for (case, _), plan in recorder.record(source, cases, ((),)).plans.items()}
        cases = without_unread(recorder, source, cases, plans)
    finally:
        recorder.close()
        compiler.close()
    found: list[tuple[RecordCase, CompiledPlan]] = []
    for case in cases:
        plan = plans[case.name]
        if isinstance(plan, RecordFault):
            raise UserError(f"the kernel cannot be recorded on {case.name} ({plan.status}): {plan.reason}")
        found.append((case, plan))
    return program(found, task.tolerance.precision)


def save_plans(judge: PlanJudge, source: Source, knobs: Knobs, folder: Path) -> list[Path]:
    """Write a source's plans on the search cases, one file each; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    plans = judge.plans(source, knobs, [CaseKind.SEARCH])
    saved = {folder / f"{case}.plan": plan for case, plan in plans.items() if isinstance(plan, CompiledPlan)}
    for path, plan in saved.items():
        save_plan_file(plan, path)
    return list(saved)


def _recorded(
    one: ExportedCandidate, task: Task, judge: PlanJudge, unconfirmed: bool, say: Callable[[str], None]
) -> RecordedCandidate:
    environment = judge.environment
    source = one.view.source
    plans: dict[str, CompiledPlan] = {}
    for case, plan in judge.plans(source, (), list(CaseKind)).items():
        if not isinstance(plan, CompiledPlan):
            raise UserError(f"candidate {one.view.candidate} cannot be recorded on {case} now: {plan.reason}")
        plans[case] = plan
    judged, then = _judged_plans(one), one.evaluation.environment
    same_versions = environment.triton == then.triton and then.assembler in ("", environment.assembler)
    if not same_versions and not unconfirmed:
        raise UserError(
            f"candidate {one.view.candidate} was judged with {_compilers(then)}, but this machine has "
            f"{_compilers(environment)}: install those versions, judge it again (`evo-kernel resume`), or give "
            "--unconfirmed"
        )
    differ = [case for case, plan in plans.items() if plan.hash not in judged.get(case, {plan.hash})]
    if same_versions and differ:
        raise UserError(
            f"the recording differs from what was judged (cases {', '.join(differ)}): judge it again with `resume`"
        )
    if missing := [case.name for case in task.cases_of(CaseKind.SEARCH) if case.name not in judged]:
        raise UserError(
            f"no plan of {', '.join(missing)} was judged, so the task file has changed: restore it, or start a new run"
        )
    compared = _compared(one, [case for case in task.cases if case.name in judged], plans, judge, say)
    return RecordedCandidate(one, f"candidate_{one.view.candidate}", source, plans, frozenset(compared), same_versions)


def _compared(
    one: ExportedCandidate,
    cases: Sequence[Case],
    plans: Mapping[str, CompiledPlan],
    judge: PlanJudge,
    say: Callable[[str], None],
) -> list[str]:
    """Of judged cases those on which all outputs were compared, or are now. Raises UserError where one is wrong.

    Without a GPU a search executes some programs of a large case. Hidden cases are judged by confirming.
    """
    measured = one.evaluation.environment.kind == "measured"
    found = []
    cases = [case for case in cases if one.confirmed or case.kind is not CaseKind.CONFIRM]
    for number, case in enumerate(cases, 1):
        if case.kind is not CaseKind.CHECK and not measured:
            say(f"candidate {one.view.candidate}: executing all of {case.name} ({number} of {len(cases)} cases)")
        known = case.kind is CaseKind.CHECK or measured
        checked = None
        if case.kind is CaseKind.CHECK or not measured:  # small ones anew, whoever says that they were judged
            checked = judge.checked_in_full(plans[case.name], case)
        if checked is not None and checked.status is Status.WRONG:
            raise UserError(
                f"candidate {one.view.candidate} is wrong on {case.name}, all of which was executed now: "
                f"{checked.reason}. Export another one (`--candidate`)"
            )
        if known or (checked is not None and checked.passed):
            found.append(case.name)
    return found


def _compilers(environment: Environment) -> str:
    return f"Triton {environment.triton}" + (f" with ptxas {environment.assembler}" if environment.assembler else "")


def _judged_plans(one: ExportedCandidate) -> dict[str, set[str]]:
    """Hashes of the plans that its verdict and its confirmation are about, by case."""
    found: dict[str, set[str]] = {}
    for case, knobs, plan in one.evaluation.plans:
        if knobs == one.evaluation.knobs:
            found.setdefault(case, set()).add(plan)
    for case, _, plan in one.confirmation.plans if one.confirmation else ():
        found.setdefault(case, set()).add(plan)
    for m in one.evaluation.measurements:
        found[m.case] = {m.plan}
    return found


def without_unread(
    recorder: Recorder, source: Source, cases: Sequence[RecordCase], plans: Mapping[str, CompiledPlan | RecordFault]
) -> list[RecordCase]:
    """The cases, without host-known values if recording without them gives the same plan."""
    hidden = [
        replace(
            case,
            name=f"{case.name}, blind",
            inputs=tuple({k: v for k, v in spec.items() if k != "host"} for spec in case.inputs),
        )
        for case in cases
    ]
    differing = [other for case, other in zip(cases, hidden, strict=True) if case.inputs != other.inputs]
    if not differing:
        return list(cases)
    recording = recorder.record(source, differing, ((),))
    return [
        replace(case, inputs=other.inputs) if _same(plans[case.name], recording.plans.get((other.name, ()))) else case
        for case, other in zip(cases, hidden, strict=True)
    ]


def _same(plan: CompiledPlan | RecordFault, other: CompiledPlan | RecordFault | None) -> bool:
    return isinstance(plan, CompiledPlan) and isinstance(other, CompiledPlan) and plan.hash == other.hash
