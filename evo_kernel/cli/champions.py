"""`champions`: the gallery of kernels that come along."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from evo_kernel.champions import champion_named
from evo_kernel.cli.export import export
from evo_kernel.cli.options import DEVICE, JSON, PATH, echo
from evo_kernel.cli.verify import verify
from evo_kernel.fitness.gpus import Nvml


class _ListGroup(click.Group):
    """A group that lists where no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = args and args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if known else ["list", *args])


@click.group(cls=_ListGroup)
def champions() -> None:
    """The gallery: kernels that come along, each the champion of a built-in task. Without a command: `list`.

    \b
    evo-kernel champions my_attention.py
    evo-kernel run my_attention.py --start-from gallery
    """


@champions.command("list")
@click.argument("task", required=False)
@JSON
def list_champions(task: str | None, as_json: bool) -> None:
    """List scores and verified sizes of all champions, or of the one that computes what TASK does."""
    from evo_kernel.app.gallery import listed

    lines, data = listed(task)
    click.echo(json.dumps(data) if as_json else "\n".join(lines))


@champions.command("show")
@click.argument("name")
@JSON
def show_champion(name: str, as_json: bool) -> None:
    """Show mechanism, measurements, dead ends and lineage of the champion NAME."""
    from evo_kernel.app.gallery import described

    champion = champion_named(name)
    told = champion.as_data() | {"text": champion.text, "lineages": champion.lineages}
    click.echo(json.dumps(told) if as_json else described(champion))


@champions.command("verify")
@click.argument("name")
@DEVICE
@JSON
@click.pass_context
def verify_champion(ctx: click.Context, name: str, device: str, as_json: bool) -> None:
    """Judge the champion NAME here, as `verify` does; with a GPU on the hidden cases."""
    files, confirm = (Path(champion_named(name).spec),), device != "cpu" and bool(Nvml().arch)
    ctx.invoke(verify, files=files, task_name=name, device=device, confirm=confirm, as_json=as_json)


@champions.command("export")
@click.argument("name")
@click.argument("folder", type=PATH)
@DEVICE
@JSON
@click.pass_context
def export_champion(ctx: click.Context, name: str, folder: Path, device: str, as_json: bool) -> None:
    """Confirm the champion NAME here, and write it to FOLDER as a package (`evo-kernel export`), with its lineage."""
    from evo_kernel.app.gallery import confirmed_population, keep_lineage

    champion = champion_named(name)
    with tempfile.TemporaryDirectory() as scratch:
        path, candidate = confirmed_population(champion, Path(scratch), device, lambda line: echo(line, err=True))
        ctx.invoke(export, population=path, folder=folder, candidate=candidate, device=device, as_json=as_json)
    keep_lineage(champion, folder)
