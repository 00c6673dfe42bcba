"""`export`: champions as a package that models can use."""

from __future__ import annotations

import json
from pathlib import Path

import click

import evo_kernel
from evo_kernel.cli.options import DEVICE, JSON, NUMBER, PATH, POPULATION


@click.command()
@POPULATION
@click.option("--to", "folder", type=PATH, required=True, help="A new or empty folder.")
@click.option("--name", help="Name of the package; TASK_kernel if left out.")
@click.option("--candidate", type=NUMBER, help="Export this candidate alone, instead of the champions.")
@click.option(
    "--also",
    type=PATH,
    multiple=True,
    metavar="POPULATION",
    help="Add another population's champions: the same operator in another dtype or on another GPU; repeatable.",
)
@click.option(
    "--backward",
    type=PATH,
    metavar="POPULATION",
    help="Population whose champions compute the gradients; without it, autograd differentiates the reference.",
)
@click.option("--unconfirmed", is_flag=True, help="Also export what was not confirmed; the folder says so.")
@DEVICE
@JSON
def export(
    population: Path,
    folder: Path,
    name: str | None,
    candidate: int | None,
    also: tuple[Path, ...],
    backward: Path | None,
    unconfirmed: bool,
    device: str,
    as_json: bool,
) -> None:
    """Write the champions of POPULATION to a folder: a package with kernels, operator, tests, plans, provenance.

    The package needs torch alone. A call runs a kernel's recorded launches if they were judged for its dtype, sizes,
    strides and GPU, else the reference. The package holds no host code of a candidate. Every kernel is recorded again
    and must match what was judged. Candidates without a confirmation are refused, unless you give --unconfirmed.
    More: docs/guides/export.md.
    """
    from evo_kernel.app.export_selection import choose, overtaken, unconfirmed_line
    from evo_kernel.export.package import checked_name

    if name is not None:
        checked_name(name)
    first = choose(population, candidate, unconfirmed)
    groups = [first, *(choose(path, None, unconfirmed) for path in also)]
    gradients = [choose(backward, None, unconfirmed)] if backward is not None else []

    from evo_kernel.app.packaging import package  # from here on it takes seconds
    from evo_kernel.app.recorded_kernels import record
    from evo_kernel.export.package import write_package

    def say(line: str) -> None:
        click.echo(line, err=True)

    forward, backwards = ([record(chosen, device, unconfirmed, say) for chosen in each] for each in (groups, gradients))
    made = package(name, forward, backwards, evo_kernel.version())
    written = write_package(made, folder)
    searched = [*([population] if candidate is None else []), *also, *([backward] if backward is not None else [])]
    for line in filter(None, map(overtaken, searched)):
        click.secho(line, fg="yellow", err=True)
    if as_json:
        data = {"candidate": first[0].view.candidate, "package": made.name, "kernels": list(made.kernels)}
        data |= {"confirmed": first[0].confirmed, "serves": made.served, "not_served": made.not_served}
        click.echo(json.dumps(data | {"files": [str(path) for path in written]}))
        return
    click.echo(f"wrote the package {made.name} to {folder}: {len(written)} files; README.md says how to use it")
    click.echo(f"its kernels serve the sizes of {', '.join(made.served)}; other calls go to the reference")
    for each in (*groups, *gradients):
        if line := unconfirmed_line(each[0], made.manifest["not_judged"]):
            click.secho(line, fg="yellow", err=True)
    if left := made.manifest["not_executed"]:
        click.secho(
            f"NOT served: {', '.join(left)}. Outputs of these sizes were not compared in full (without a GPU that "
            "takes too long), so their calls go to the reference too. Search on a GPU, then export again:\n"
            f"  evo-kernel run {forward[0][0].spec} --start-from {population} --population measured.db --device cuda",
            fg="yellow",
            err=True,
        )
