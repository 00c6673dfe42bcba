"""`tree`: the lineage of a population."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from evo_kernel.cli.options import JSON, PATH, POPULATION


@click.command()
@POPULATION
@click.option("--all", "everything", is_flag=True, help="Show every candidate, not only what led to improvements.")
@click.option(
    "--to",
    "files",
    type=PATH,
    multiple=True,
    help="Write all candidates to a file: .jsonl (with sources) or .graphml; repeatable.",
)
@JSON
def tree(population: Path, everything: bool, files: tuple[Path, ...], as_json: bool) -> None:
    """Show the lineage: the paths of the champion and of the best candidate, or the whole graph to a file."""
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        for path in files:
            reader.export_graph(path)
        if files:
            said = {"files": [str(path) for path in files]}
            click.echo(json.dumps(said) if as_json else "\n".join(f"wrote {path}" for path in files))
            return
        nodes = list(reader.nodes())
        leader = reader.leader()
        path = reader.path_candidates(leader.candidate) if leader else []
        best = reader.best()  # not confirmed yet, where it is another one
        ahead = reader.path_candidates(best.candidate) if best else []
    shown_too = {*path, *ahead}
    if as_json:
        shown = [node for node in nodes if everything or not path or node["candidate"] in shown_too]
        click.echo(json.dumps({"path": path, "candidates": shown}))
        return
    if not nodes:
        click.echo("no candidates yet")
        return
    _print_tree(nodes if everything or not path else [n for n in nodes if n["candidate"] in shown_too], set(path))
    if set(ahead) - set(path):
        click.echo(
            f"* the champion's path; candidate {ahead[-1]} is faster, and not confirmed: the next resume does that"
        )


def _print_tree(nodes: list[dict[str, Any]], path: set[int]) -> None:
    from rich.tree import Tree

    from evo_kernel.app.console import open_console

    label = next((n["kind"] for n in nodes if n["kind"]), "")
    device = next((n["device"] for n in nodes if n["device"]), "")
    root = Tree(f"lineage, scores {label} ({device})")
    branches: dict[int, Any] = {}
    for node in nodes:
        score = f"{node['score']:.3f}" if node["score"] is not None else (node["status"] or "pending")
        mark = " *" if node["candidate"] in path else ""
        text = f"{node['candidate']}  {node['strategy'] or node['operator']}  {score}{mark}"
        above = branches.get(node["parent"] or 0, root)
        branches[node["candidate"]] = above.add(text, highlight=False)
    open_console().print(root, soft_wrap=True)
