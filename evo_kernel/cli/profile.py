"""`profile`: what the kernels of a file do with the GPU."""

from __future__ import annotations

import json
from pathlib import Path

import click

from evo_kernel.app.sources import read_source
from evo_kernel.cli.options import DEADLINE, DEVICE, JSON, KERNEL_FILE, TASK, UNCONFINED


@click.command()
@KERNEL_FILE
@TASK
@click.option("--case", "case_name", help="Profile this case; all search cases if left out.")
@DEVICE
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
    from evo_kernel.fitness.judge import JudgeSettings, open_judge
    from evo_kernel.tasks.loading import load
    from evo_kernel.types import CaseKind

    source = read_source(file)
    task = load(task_name)
    settings = JudgeSettings(deadline_s=deadline_s, tune_plans=0, unconfined=unconfined)
    kinds = [CaseKind.SEARCH] if case_name is None else [task.case(case_name).kind]
    with open_judge(task, device=device, settings=settings) as judge:
        found = judge.profile(source, (), kinds, counters, case_name)
        label = judge.environment.label
    if as_json:
        cases = {case: one.as_data() for case, one in found.items()}
        click.echo(json.dumps({"environment": {"kind": judge.environment.kind, "label": label}, "cases": cases}))
        return
    for case, one in found.items():
        click.echo(f"{case}: {one.as_text(label)}")
