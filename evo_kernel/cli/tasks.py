"""`tasks`: list, show, check and make tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evo_kernel.cli.import_tasks import export_solution, import_tasks, write_new
from evo_kernel.cli.options import DEVICE, FIRST, JSON, PATH

if TYPE_CHECKING:
    from evo_kernel.tasks.first import Wanted

TEMPLATE = '''"""One line on what this computes."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 64, "n": 129}],  # small: checked on any machine
    "search": [{"m": 4096, "n": 4096}],  # real sizes: these steer the search
    "confirm": [{"m": 2048, "n": 8192}],  # hidden from the search: champions are judged here
}


def inputs(case, generator, device):
    return (torch.randn(case["m"], case["n"], generator=generator, device=device),)


def reference(x):
    return x * torch.sigmoid(x) + x.mean(dim=-1, keepdim=True)
'''


@click.group()
def tasks() -> None:
    """A task says what a kernel must compute: a Python file with CASES, inputs and reference (docs/guides/tasks.md)."""


@tasks.command("list")
@JSON
def list_tasks(as_json: bool) -> None:
    """List the built-in tasks."""
    from evo_kernel.tasks.loading import builtin_names, load

    found = {name: load(name).description for name in builtin_names()}
    if as_json:
        click.echo(json.dumps(found))
        return
    width = max(map(len, found))
    for name, description in found.items():
        click.echo(f"{name:<{width}}  {description.splitlines()[0] if description else ''}")


@tasks.command("show")
@click.argument("task")
@click.option("--seed", "show_seed", is_flag=True, help="Print only the first kernel.")
@FIRST
@JSON
def show_task(task: str, show_seed: bool, wanted: Wanted, as_json: bool) -> None:
    """Show cases, rules and first kernel of TASK."""
    from evo_kernel.tasks.first import first_kernel
    from evo_kernel.tasks.loading import load

    loaded = load(task)
    if show_seed:
        click.echo(first_kernel(loaded, wanted).text)
        return
    cases = [{"case": c.name, "kind": str(c.kind), "sizes": dict(c.sizes)} for c in loaded.cases]
    if as_json:
        data = {"name": loaded.name, "path": str(loaded.path), "allow": loaded.allow, "cases": cases,
                "baselines": sorted(loaded.baselines), "seed": loaded.seed is not None,
                "notes": list(loaded.notes)}  # fmt: skip
        click.echo(json.dumps(data))
        return
    click.echo(f"{loaded.name}  {loaded.path}\n{loaded.description}")
    click.echo(f"allow {loaded.allow}; precision {loaded.tolerance.precision}; baselines {', '.join(loaded.baselines)}")
    for case in cases:
        click.echo(f"  {case['kind']:<8} {case['case']:<24} {case['sizes']}")
    for note in loaded.notes:
        click.echo(f"note: {note}")


@tasks.command("check")
@click.argument("task")
@DEVICE
@FIRST
@JSON
def check_task(task: str, device: str, wanted: Wanted, as_json: bool) -> None:
    """Load TASK, probe it, compare what it states with its reference, and judge its first kernel.

    Exit code 1 if something is wrong.
    """
    from evo_kernel.app.remaining_torch_operations import mixed_lines
    from evo_kernel.app.task_check import checked
    from evo_kernel.app.verdicts import evaluation_data
    from evo_kernel.observe.formatting import held_texts
    from evo_kernel.tasks.loading import load

    loaded = load(task)
    findings, evaluation = checked(loaded, device, wanted)
    sound, label = evaluation.passed and not any(one.fatal for one in findings), evaluation.environment.label
    if as_json:
        said = [{"fatal": finding.fatal, "sentence": finding.sentence} for finding in findings]
        data = {"task": loaded.name, "sound": sound, "findings": said, "notes": list(loaded.notes)}
        click.echo(json.dumps(data | {"first_kernel": evaluation_data(evaluation)}))
    else:
        lines = [f"{'NO' if finding.fatal else 'note'}  {finding.sentence}" for finding in findings]
        reason = f": {evaluation.reason}" if evaluation.reason else ""
        lines.append(f"first kernel {evaluation.status}, {label}{reason}")
        lines += [f"  {m.case}: {m.median_us:.1f} µs, floor {held_texts(m, 1)[0]} µs, {label}"
                  for m in evaluation.measurements]  # fmt: skip
        click.echo("\n".join([*lines, *mixed_lines(evaluation)]))
    if not sound:
        sys.exit(1)


@tasks.command("new")
@click.argument("file", type=PATH)
def new_task(file: Path) -> None:
    """Write a task file to start from."""
    write_new(file, TEMPLATE)
    click.echo(f"wrote {file}; look at it with `evo-kernel tasks show {file}`, search with `evo-kernel run {file}`")


tasks.add_command(import_tasks)
tasks.add_command(export_solution)
