"""`report`: a run as one document."""

from __future__ import annotations

import json
from pathlib import Path

import click

from evo_kernel.cli.options import DEVICE, JSON, PATH, POPULATION
from evo_kernel.errors import UserError


@click.command()
@POPULATION
@click.option(
    "--to",
    "files",
    type=PATH,
    multiple=True,
    help="A .html or .md file to write; repeatable. POPULATION.html if left out.",
)
@click.option("--candidate", type=int, help="Report on this candidate instead of the champion, else the best.")
@click.option("--ablate", is_flag=True, help="Judge the kernel again without each edit of its path; takes a while.")
@DEVICE
@JSON
def report(
    population: Path, files: tuple[Path, ...], candidate: int | None, ablate: bool, device: str, as_json: bool
) -> None:
    """Write a document about the run of POPULATION: plots, the champion edit by edit, tables, how to repeat it.

    The HTML is one file without scripts. With --ablate, each edit is removed from the finished kernel by a three-way
    merge, and the rest is judged like any candidate, beside the kernel itself.

    \b
    evo-kernel report softmax.db
    evo-kernel report softmax.db --ablate --to softmax.html --to softmax.md
    """
    from evo_kernel.app.run_report import blocks, edits_of, report_data
    from evo_kernel.observe import document
    from populations.reading import PopulationReader

    places = files or (population.with_suffix(".html"),)
    for path in places:
        if path.suffix not in (".html", ".md"):
            raise UserError(f"a report is written as .html or .md, not {path.suffix!r}: rename {path.name}")
    with PopulationReader(population) as reader:
        edits, again = edits_of(reader, candidate), None
        if ablate:
            from evo_kernel.app.ablation import ablated

            edits, again = ablated(reader, edits, device)
        made, title = blocks(reader, edits, again), f"{reader.task.name}: evo-kernel"
    for path in places:
        document.save(path, title, made)
    if as_json:
        click.echo(json.dumps({"files": [str(path) for path in places]} | report_data(edits, again)))
    else:
        click.echo("\n".join(f"wrote {path}" for path in places))
