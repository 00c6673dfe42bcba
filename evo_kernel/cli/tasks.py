"""`tasks`: list, show, check, make, import and export tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evo_kernel.cli.options import DEVICE, FILE, FIRST, JSON, PATH, echo, read_source
from evo_kernel.errors import UserError

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
    from evo_kernel.fitness.timing.baselines import baseline_names
    from evo_kernel.tasks.first import first_kernel
    from evo_kernel.tasks.loading import load

    loaded = load(task)
    if show_seed:
        click.echo(first_kernel(loaded, wanted).text)
        return
    baselines = baseline_names(loaded)
    cases = [
        {"case": c.name, "kind": str(c.kind), "sizes": dict(c.sizes), "inputs": loaded.input_texts(c)}
        for c in loaded.cases
    ]
    if as_json:
        data = {"name": loaded.name, "path": str(loaded.path), "allow": loaded.allow, "cases": cases,
                "baselines": baselines, "seed": loaded.seed is not None,
                "notes": list(loaded.notes)}  # fmt: skip
        click.echo(json.dumps(data))
        return
    echo(f"{loaded.name}  {loaded.path}\n{loaded.description}")
    click.echo(f"allow {loaded.allow}; precision {loaded.tolerance.precision}; baselines {', '.join(baselines)}")
    for case in cases:
        echo(f"  {case['kind']:<8} {case['case']:<24} {case['sizes']}")
        more = f", and {len(case['inputs']) - MOST_INPUTS} more" if len(case["inputs"]) > MOST_INPUTS else ""
        click.echo(f"           {', '.join(case['inputs'][:MOST_INPUTS])}{more}")
    for note in loaded.notes:
        echo(f"note: {note}")


MOST_INPUTS = 12
"""Of a case, that are shown to people: a network has hundreds."""


@tasks.command("check")
@click.argument("task")
@DEVICE
@FIRST
@JSON
def check_task(task: str, device: str, wanted: Wanted, as_json: bool) -> None:
    """Load TASK, probe it, compare what it states with its reference, and judge its first kernel.

    Exit code 1 if something is wrong.
    """
    from evo_kernel.app.verdicts import evaluation_data, mixed_lines
    from evo_kernel.fitness.judge import JudgeSettings, open_judge
    from evo_kernel.observe.formatting import held_texts
    from evo_kernel.tasks.first import first_kernel
    from evo_kernel.tasks.loading import load
    from evo_kernel.tasks.probe import examine, probe
    from evo_kernel.types import Purpose

    loaded = load(task)
    findings = probe(loaded)
    if not any(finding.fatal for finding in findings):
        findings += examine(loaded)
    with open_judge(loaded, device=device, settings=JudgeSettings(tune_plans=0, every_configuration=True)) as judge:
        evaluation = judge.evaluate(first_kernel(loaded, wanted), Purpose.SCORE)
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
        lines += [*mixed_lines(evaluation), *(["the task is sound"] if sound else [])]
        echo("\n".join(lines))
    if not sound:
        sys.exit(1)


@tasks.command("new")
@click.argument("file", type=PATH)
def new_task(file: Path) -> None:
    """Write a task file to start from."""
    write_new(file, TEMPLATE)
    click.echo(f"wrote {file}; look at it with `evo-kernel tasks show {file}`, search with `evo-kernel run {file}`")


@tasks.command("import")
@click.argument("spec")
@click.option("--to", "file", type=PATH, help="Write the one problem named as a task file.")
@JSON
def import_tasks(spec: str, file: Path | None, as_json: bool) -> None:
    """List the problems of SPEC, a local checkout: kernelbench:PATH, kernelbench:PATH/level1, .../level1/23.

    Each is a TASK for every other command.
    """
    from evo_kernel.tasks.loading import IMPORTERS, importer_of, load

    importer = importer_of(spec)
    if importer is None:
        schemes = ", ".join(f"{scheme}:PATH" for scheme in IMPORTERS)
        raise UserError(f"{spec!r} names no benchmark; write {schemes}")
    found = importer.entries(spec.partition(":")[2])
    if file is not None:
        write_new(file, load(spec).text)
        click.echo(f"wrote {file}; look at it with `evo-kernel tasks show {file}`")
    elif as_json:
        click.echo(json.dumps([{"task": entry.spec, "title": entry.title} for entry in found]))
    else:
        for entry in found:
            echo(f"{entry.spec}  {entry.title}")


@tasks.command("export")
@click.argument("spec")
@click.argument("kernel", type=FILE)
@click.option("--to", "folder", type=PATH, required=True, help="Folder of the run, such as runs/NAME.")
@click.option("--sample", default=0, show_default=True, help="Number of the sample (KernelBench).")
@DEVICE
def export_solution(spec: str, kernel: Path, folder: Path, sample: int, device: str) -> None:
    """Write KERNEL, a module with run(*inputs), as a solution of the problem SPEC that its own harness accepts.

    The file holds the launches that KERNEL makes on the problem's cases, recorded here and not judged (`verify` does
    that). It accepts inputs of those sizes on this GPU. KERNEL's own Python runs only in the recorder's sandbox.
    """
    from evo_kernel.app.solutions import solution_text, write_solution
    from evo_kernel.tasks.loading import IMPORTERS, importer_of

    if importer_of(spec) is None:
        raise UserError(
            f"{spec!r} is no problem of a benchmark; write {' or '.join(f'{one}:PATH/...' for one in IMPORTERS)}"
        )
    text = solution_text(spec, read_source(kernel), device)
    path, notes = write_solution(spec, text, folder, sample)
    echo("\n".join([f"wrote {path}", *(f"note: {note}" for note in notes)]))


def write_new(file: Path, text: str) -> None:
    """Raises UserError."""
    if file.exists():
        raise UserError(f"{file} exists already; name another file")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); name another file") from error
