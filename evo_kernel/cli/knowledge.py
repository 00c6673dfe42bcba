"""`knowledge`: search what the agents can look up."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from evo_kernel.cli.options import PATH, echo
from evo_kernel.config import load_config
from operators.knowledge.base import KnowledgeBase


@click.command()
@click.argument("query", nargs=-1)
@click.option("--folder", "folders", multiple=True, type=PATH, help="Also search this folder of notes; repeatable.")
@click.option("--config", "config_path", type=PATH, help="Also search the knowledge.folders of this configuration.")
@click.option("--k", default=4, show_default=True, type=click.IntRange(1, 100), help="Passages, at most.")
@click.option(
    "--tokens",
    default=4000,
    show_default=True,
    type=click.IntRange(50),
    help="Tokens in all, at most.",
)
@click.option("--api/--no-api", default=True, help="Include the API of the installed Triton.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of {source, title, text}.")
def knowledge(
    query: tuple[str, ...],
    folders: tuple[Path, ...],
    config_path: Path | None,
    k: int,
    tokens: int,
    api: bool,
    as_json: bool,
) -> None:
    """Search what agents can look up: notes on kernels for Hopper, the installed Triton's API, your own folders.

    QUERY is words or identifiers; quotes are not needed. Without one, all passages are listed. Each passage is
    printed with its source: `evo-kernel/…` are the shipped notes, `triton-VERSION/…` describes the Triton that is
    installed here (signatures that an agent may rely on), and all else is from your folders.

    \b
    evo-kernel knowledge why is there no wgmma in my matmul
    evo-kernel knowledge tl.make_tensor_descriptor --k 1
    evo-kernel knowledge shared memory bank conflicts --no-api --json
    evo-kernel knowledge our fp8 recipe --folder ~/kernel-notes

    To give your notes to the agents of a run, name the folder in its configuration:

    \b
    [knowledge]
    folders = ["/home/me/kernel-notes"]
    """
    base = KnowledgeBase([*load_config(config_path).knowledge.folders, *folders], api=api)
    text = " ".join(query)
    if text:
        found = [asdict(passage) for passage in base.search(text, k, tokens)]
    else:
        found = [{"source": source, "title": title} for source, title in base.titles()]
    for sentence in base.skipped:
        echo(sentence, err=True)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    elif text:
        echo("\n\n".join(f"== {one['title']}\n   {one['source']}\n\n{one['text']}" for one in found))
    else:
        echo("\n".join(f"{one['source']}  {one['title']}" for one in found))
    if not found:
        echo(f"nothing was found for {text!r}: try other words, or none to list all there is", err=True)
        sys.exit(1)
