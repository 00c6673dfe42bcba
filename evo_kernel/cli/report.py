"""`report`: a run as one document."""

from __future__ import annotations

import json
from pathlib import Path

import click

from evo_kernel.cli.options import JSON, PATH, POPULATION
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
@JSON
def report(population: Path, files: tuple[Path, ...], candidate: int | None, as_json: bool) -> None:
    """Write a document about the run of POPULATION: plots, the champion edit by edit, tables, how to repeat it.

    The HTML is one file without scripts.

    \b
    evo-kernel report softmax.db --to softmax.html --to softmax.md
    """
    from evo_kernel.app.run_report import blocks, edits_of
    from evo_kernel.observe import document
    from populations.reading import PopulationReader

    places = files or (population.with_suffix(".html"),)
    for path in places:
        if path.suffix not in (".html", ".md"):
            raise UserError(f"a report is written as .html or .md, not {path.suffix!r}: rename {path.name}")
    with PopulationReader(population) as reader:
        edits = edits_of(reader, candidate)
        made, title = blocks(reader, edits), f"{reader.task.name}: evo-kernel"
    for path in places:
        document.save(path, title, made)
    if as_json:
        click.echo(json.dumps({"files": [str(path) for path in places], "path": [edit.as_data() for edit in edits]}))
    else:
        click.echo("\n".join(f"wrote {path}" for path in places))
