"""`verify`, `replay` and `profile`: trust for a single kernel, with no search around it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from evo_kernel.app.variants import settings_of, variants_of
from evo_kernel.app.verdicts import evaluation_data, show_evaluation, show_evaluations
from evo_kernel.cli.options import (
    DEADLINE,
    DEVICE,
    JSON,
    JUDGE,
    KERNEL_FILE,
    PATH,
    TASK,
    UNCONFINED,
    echo,
    read_source,
    with_settings,
)
from evo_kernel.errors import UserError
from evo_kernel.judge_place import LOCAL


@click.command()
@click.argument("files", metavar="FILE...", type=PATH, nargs=-1, required=True)
@TASK
@with_settings
@DEVICE
@JUDGE
@click.option("--confirm", is_flag=True, help="Judge on the hidden cases, with every regime and new seeds.")
@click.option("--tune", default=0, show_default=True, help="Knob settings to try beyond the file's own.")
@DEADLINE
@click.option("--save-plan", type=PATH, help="Folder for the recorded plans of one FILE, one for each search case.")
@UNCONFINED
@JSON
def verify(
    files: tuple[Path, ...],
    task_name: str,
    knobs: tuple[str, ...],
    settings_file: Path | None,
    device: str,
    judge_at: str | None,
    confirm: bool,
    tune: int,
    deadline_s: float,
    save_plan: Path | None,
    unconfined: bool,
    as_json: bool,
) -> None:
    """Check the kernel in FILE against a task, and score it; several files and knob settings at once, fastest first.

    FILE is a Python module with `run(*inputs)`, or a function of an installed package as `package.module:function`. Its
    Python runs only in a sandbox, which records its launches. All autotune configurations that fit the GPU are checked;
    the first is timed. Without a GPU, times are modeled and marked so. Exit code 1 if one does not pass.

    \b
    evo-kernel verify mine.py --task softmax
    evo-kernel verify liger_kernel.ops.rms_norm:LigerRMSNormFunction.apply --task my_rms.py
    evo-kernel verify mine.py --task my_op.py --json --save-plan plans/
    evo-kernel verify variants/*.py --task my_op.py --settings settings.json --json
    evo-kernel verify mine.py --task my_op.py --judge spool:/shared/judging
    """
    variants = variants_of([(str(file), read_source(file)) for file in files], settings_of(knobs, settings_file))
    if save_plan is not None and len(variants) > 1:
        raise UserError("--save-plan writes the plans of one FILE with one setting: name one.")
    place = judge_at or LOCAL
    if place == LOCAL:
        from evo_kernel.app import early_start

        early_start.begin(task_name, device)
    elif save_plan is not None:
        raise UserError("--save-plan records here: leave --judge out.")
    from evo_kernel.app.judges import opened_judge
    from evo_kernel.fitness.judge import JudgeSettings, PlanJudge
    from evo_kernel.tasks.loading import load
    from evo_kernel.types import Purpose

    sources = [variant.source for variant in variants]
    task = load(task_name)
    settings = JudgeSettings(deadline_s, tune, unconfined=unconfined, every_configuration=True)
    purpose = Purpose.CONFIRM if confirm else Purpose.SCORE
    faults: dict[str, str] = {}
    with opened_judge(place, task, device=device, settings=settings, score_soon=not confirm, say=_say) as judge:
        judge.baselines.on_baselines = lambda case, times, failed: faults.update({} if times else failed)
        evaluations = judge.evaluate_all(sources, purpose)
        if save_plan is not None and evaluations[0].passed and isinstance(judge, PlanJudge):
            from evo_kernel.app.recorded_kernels import save_plans

            for path in save_plans(judge, sources[0], evaluations[0].knobs, save_plan):
                _say(f"wrote {path}")
    if as_json:
        told = [variant.as_data() | evaluation_data(one) for variant, one in zip(variants, evaluations, strict=True)]
        click.echo(json.dumps(told if len(told) > 1 else told[0]))
    elif len(variants) > 1:
        show_evaluations(variants, evaluations)
    else:
        show_evaluation(evaluations[0], faults)
    if not all(one.passed for one in evaluations):
        sys.exit(1)


@click.command()
@click.argument("plan", type=PATH)
@TASK
@DEVICE
@DEADLINE
@JSON
def replay(plan: Path, task_name: str, device: str, deadline_s: float, as_json: bool) -> None:
    """Check and time a plan file, as `verify --save-plan` and `export` write it, without running its author's Python.

    Where a search or confirm case takes more than 30 s to execute without a GPU, the plan is only timed, and the answer
    is `timed` (in JSON `unchecked`), not `passed`. Exit code 1 if something is wrong.

    \b
    evo-kernel replay plans/m4096-n4096.plan --task softmax
    """
    from evo_kernel.fitness.replay import replay_plan

    found = replay_plan(plan, task_name, device, deadline_s)
    if as_json:
        click.echo(json.dumps(found.as_data()))
    else:
        echo("\n".join(found.lines()))
    if not found.passed:
        sys.exit(1)


def _say(line: str) -> None:
    echo(line, err=True)


@click.command()
@KERNEL_FILE
@TASK
@click.option("--case", "case_name", help="Profile this case; all search cases if left out.")
@DEVICE
@JUDGE
@DEADLINE
@UNCONFINED
@click.option(
    "--counters/--no-counters",
    default=None,
    help="Read hardware counters with Nsight Compute; by default if there is a GPU and `ncu`.",
)
@JSON
def profile(
    file: Path,
    task_name: str,
    case_name: str | None,
    device: str,
    judge_at: str | None,
    deadline_s: float,
    unconfined: bool,
    counters: bool | None,
    as_json: bool,
) -> None:
    """Show what the kernels of FILE do with the GPU, launch by launch: what bounds them, rates, occupancy, counters.

    FILE is a Python module with `run(*inputs)`; `show POP --source` prints one. Each launch is timed alone;
    outputs are not checked (`verify` does that). Without a GPU the times are modeled.
    docs/internals/profiling.md explains each line.

    \b
    evo-kernel profile mine.py --task softmax
    """
    from evo_kernel.app.judges import opened_judge
    from evo_kernel.fitness.judge import JudgeSettings
    from evo_kernel.tasks.loading import load
    from evo_kernel.types import CaseKind

    source = read_source(file)
    task = load(task_name)
    settings = JudgeSettings(deadline_s=deadline_s, tune_plans=0, unconfined=unconfined)
    kinds = [CaseKind.SEARCH] if case_name is None else [task.case(case_name).kind]
    with opened_judge(judge_at or LOCAL, task, device=device, settings=settings, say=_say) as judge:
        found = judge.profile(source, (), kinds, counters, case_name)
        label = judge.environment.label
    if as_json:
        cases = {case: one.as_data() for case, one in found.items()}
        click.echo(json.dumps({"environment": {"kind": judge.environment.kind, "label": label}, "cases": cases}))
        return
    for case, one in found.items():
        echo(f"{case}: {one.as_text(label)}")
