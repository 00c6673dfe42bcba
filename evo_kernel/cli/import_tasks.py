"""`tasks import` and `tasks export`: problems of a benchmark's checkout as tasks, and kernels as its solutions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from evo_kernel.app.sources import read_source
from evo_kernel.cli.options import DEVICE, FILE, JSON, PATH
from evo_kernel.errors import UserError


@click.command("import")
@click.argument("spec")
@click.option("--check", is_flag=True, help="Load and check each problem at reduced sizes, and write its first kernel.")
@click.option("--to", "file", type=PATH, help="Write the one problem named as a task file.")
@click.option(
    "--deadline", default=120.0, show_default=True, help="Seconds of processor time that one problem may take."
)
@click.option("--memory", default=6.0, show_default=True, help="Gigabytes of memory that one problem may take.")
@JSON
def import_tasks(spec: str, check: bool, file: Path | None, deadline: float, memory: float, as_json: bool) -> None:
    """List the problems of SPEC, a local checkout: kernelbench:PATH, kernelbench:PATH/level1, .../level1/23.

    Each is a TASK for every other command. --check runs the problems' own code, as loading them does, each in a
    process of its own.
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
    elif check:
        _check(found, deadline, memory, as_json)
    elif as_json:
        click.echo(json.dumps([{"task": entry.spec, "title": entry.title} for entry in found]))
    else:
        for entry in found:
            click.echo(f"{entry.spec}  {entry.title}")


@click.command("export")
@click.argument("spec")
@click.argument("kernel", type=FILE)
@click.option("--to", "folder", type=PATH, required=True, help="Folder of the run, such as runs/NAME.")
@click.option("--sample", default=0, show_default=True, help="Number of the sample (KernelBench).")
@click.option("--author", default="evo-kernel", show_default=True, help="Author (FlashInfer-Bench).")
@click.option("--hardware", default="NVIDIA H200", show_default=True, help="Target hardware (FlashInfer-Bench).")
@DEVICE
def export_solution(
    spec: str, kernel: Path, folder: Path, sample: int, author: str, hardware: str, device: str
) -> None:
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
    path, notes = write_solution(spec, text, folder, sample=sample, author=author, hardware=hardware)
    click.echo("\n".join([f"wrote {path}", *(f"note: {note}" for note in notes)]))


def write_new(file: Path, text: str) -> None:
    """Raises UserError."""
    if file.exists():
        raise UserError(f"{file} exists already; name another file")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); name another file") from error


def _check(found: Sequence[Any], deadline_s: float, memory_gb: float, as_json: bool) -> None:
    from evo_kernel.observe.document import Table, markdown
    from evo_kernel.tasks.importers.survey import summary, surveyed

    rows: list[dict[str, Any]] = []
    for entry, survey in zip(found, surveyed([entry.spec for entry in found], deadline_s, memory_gb), strict=True):
        rows.append(survey.as_data() | {"label": entry.label, "group": entry.group})
        if not as_json:
            click.echo(f"{entry.label:<12} {survey.line}")
    counts = summary(rows)
    if as_json:
        click.echo(json.dumps({"problems": rows, "summary": counts}))
        return
    head = ["group", *(name.replace("first_", "first: ") for name in next(iter(counts.values()), {}))]
    table = Table(head, [[group, *map(str, numbers.values())] for group, numbers in counts.items()])
    click.echo("\n" + markdown([table]).rstrip())
