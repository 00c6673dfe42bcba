"""`verify` and `replay`: trust for a single kernel, with no search around it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from evo_kernel.errors import UserError


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--task", "task_name", required=True, help="A built-in task, or the path of a task file.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--confirm", is_flag=True, help="Judge on the hidden cases, every regime, fresh seeds.")
@click.option("--tune", default=0, show_default=True, help="Knob settings to try beyond the file's own.")
@click.option("--deadline", "deadline_s", default=60.0, show_default=True, help="Seconds for one recording or check.")
@click.option("--save-plan", type=click.Path(path_type=Path), help="Folder for the recorded plans, one a search case.")
@click.option("--unconfined", is_flag=True, help="Go on where candidate code cannot be confined at all.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(
    file: Path,
    task_name: str,
    device: str,
    confirm: bool,
    tune: int,
    deadline_s: float,
    save_plan: Path | None,
    unconfined: bool,
    as_json: bool,
) -> None:
    """Check the kernel in FILE against a task, and score it.

    FILE is a Python module with `run(*inputs)`. It is recorded in a confined process and never runs where it is
    judged. Without a GPU its time is modeled and says so. Exit code 1 when it does not pass.

    \b
    evo-kernel verify mine.py --task softmax
    evo-kernel verify mine.py --task my_op.py --json --save-plan plans/
    """
    from evo_kernel.fitness.judge import JudgeSettings, open_judge
    from evo_kernel.tasks.loading import load
    from evo_kernel.types import Purpose

    source = read_source(file)
    task = load(task_name)
    settings = JudgeSettings(deadline_s=deadline_s, tune_plans=tune, unconfined=unconfined)
    with open_judge(task, device=device, settings=settings) as judge:
        evaluation = judge.evaluate(source, Purpose.CONFIRM if confirm else Purpose.SCORE)
        if save_plan is not None and evaluation.passed:
            _save_plans(judge, source, evaluation.knobs, save_plan)
    if as_json:
        click.echo(json.dumps(evaluation_data(evaluation)))
    else:
        show_evaluation(evaluation)
    if not evaluation.passed:
        sys.exit(1)


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--task", "task_name", help="Also check the outputs against this task.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--deadline", "deadline_s", default=60.0, show_default=True, help="Seconds for one check or timing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(plan: Path, task_name: str | None, device: str, deadline_s: float, as_json: bool) -> None:
    """Time a plan file, as `verify --save-plan` and `export` write it, without running its author's Python.

    Inputs are drawn at random for the plan's shapes; with --task they are the task's, and the outputs are checked. The
    sizes of search and confirm cases are too large to execute without a GPU: there such a plan is timed alone, and the
    answer is `timed` (in JSON `unchecked`), not `passed`. Exit code 1 when something is found wrong.

    \b
    evo-kernel replay plans/m4096-n4096.plan --task softmax
    """
    from evo_kernel.fitness.replay import replay_plan

    found = replay_plan(plan, task_name, device, deadline_s)
    if as_json:
        click.echo(json.dumps(found.as_data()))
    else:
        click.echo("\n".join(found.lines()))
    if not found.passed:
        sys.exit(1)


def read_source(file: Path) -> Any:
    """The kernel in a file. Raises UserError with a plain sentence."""
    from evo_kernel.types import Source

    try:
        return Source(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {file}: it is not UTF-8 text, so it is no Python module") from error


def evaluation_data(evaluation: Any) -> dict[str, Any]:
    """An Evaluation as one object for scripts; times in µs."""
    from evo_kernel.cli.confirmed import comparisons_data
    from evo_kernel.cli.mixed import mixed_data
    from evo_kernel.observe.words import denominator

    environment = evaluation.environment
    checks = {check.case: check for check in evaluation.checks}
    return {
        "status": str(evaluation.status),
        "reason": evaluation.reason,
        "score": evaluation.score,
        "purpose": str(evaluation.purpose),
        "environment": {"kind": environment.kind, "label": environment.label, "device": environment.device,
                        "driver": environment.driver, "torch": environment.torch, "triton": environment.triton,
                        "confinement": environment.confinement, "key": environment.key},
        "knobs": dict(evaluation.knobs),
        "checks": [{"case": c.case, "passed": c.passed, "error": c.error if _was_compared(c) else None,
                    "reason": c.reason} for c in checks.values()],
        "mixed": mixed_data(evaluation),
        "comparisons": comparisons_data(evaluation.comparisons),
        "cases": [{"case": m.case, "us": m.median_us, "low_us": m.low_us, "high_us": m.high_us, "samples": m.n,
                   "baselines_us": dict(m.baselines_us), "denominator": denominator(m.baselines_us) or None,
                   "speedup": m.speedup, "light_share": m.light_share,
                   "plan": m.plan} for m in evaluation.measurements],
        "evaluations": dict(evaluation.charged),
        "wall_s": evaluation.wall_s,
        "gpu_s": evaluation.gpu_s,
    }  # fmt: skip


def _was_compared(check: Any) -> bool:
    """Whether its error is a number: a check may also fail before there is anything to compare."""
    return check.error < 1e30 if check.passed else 1.0 < check.error < 1e30


def _save_plans(judge: Any, source: Any, knobs: Any, folder: Path) -> None:
    from evo_kernel.fitness.plan import CompiledPlan, save_plan_file
    from evo_kernel.types import CaseKind

    folder.mkdir(parents=True, exist_ok=True)
    for case, plan in judge.plans(source, knobs, [CaseKind.SEARCH]).items():
        if isinstance(plan, CompiledPlan):
            path = folder / f"{case}.plan"
            save_plan_file(plan, path)
            click.echo(f"wrote {path}", err=True)


def show_evaluation(evaluation: Any) -> None:
    """A verdict for people: status, checks, score and times."""
    from rich.text import Text

    from evo_kernel.cli.confirmed import comparison_lines
    from evo_kernel.cli.mixed import mixed_lines
    from evo_kernel.cli.printing import open_console
    from evo_kernel.cli.summary import case_table

    console = open_console()
    label = evaluation.environment.label
    reason = f": {evaluation.reason}" if evaluation.reason else ""
    console.print(Text(f"{evaluation.status}, judged where scores are {label}{reason}"), soft_wrap=True)
    for check in evaluation.checks:
        mark = "ok" if check.passed else "NO"
        error = f": error at {check.error:.3g} of its bound" if _was_compared(check) else ""
        console.print(Text(f"  {mark} {check.case}{error}"), soft_wrap=True)
    if evaluation.score is not None:
        console.print(f"score {evaluation.score:.3f}, {label}", style="bold", highlight=False)
        console.print(case_table(evaluation, label))
    for line in (*comparison_lines(evaluation), *mixed_lines(evaluation)):
        console.print(Text(line), soft_wrap=True)
