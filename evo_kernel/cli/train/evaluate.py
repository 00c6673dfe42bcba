"""`train evaluate`: how far policies stay behind the best that a tree holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evo_kernel.cli.options import JSON, PATH, TREE_FILE
from evo_kernel.errors import UserError

if TYPE_CHECKING:
    from operators.learning.tree import Split


@click.command()
@TREE_FILE
@click.option("--policy", "policies", multiple=True, type=PATH, help="A checkpoint; may be repeated.")
@click.option(
    "--split",
    type=click.Choice(["held-out", "train"]),
    default="held-out",
    show_default=True,
    help="Which tasks: those that training never saw, or those that it saw.",
)
@click.option("--seeds", type=click.IntRange(min=2), default=5, show_default=True, help="Over which intervals are.")
@click.option("--episodes", type=click.IntRange(min=1), default=10, show_default=True, help="On each problem.")
@JSON
def evaluate(
    tree_file: Path,
    policies: tuple[Path, ...],
    split: Split,
    seeds: int,
    episodes: int,
    as_json: bool,
) -> None:
    """Hold policies against uniform choice and the bandit on tasks that were not trained on.

    Regret: the best log gain that eight known steps reach from a task's first kernel, less what the policy reached;
    intervals are 95 % over seeds. The bandit begins anew on every problem and learns from episode to episode.
    """
    from operators.learning.evaluation import Regret, contenders, regret, table
    from operators.learning.tree import Tree

    tree = Tree.load(tree_file)
    if not tree.roots(split):
        raise UserError(f"{tree_file} has no {split} task: collect some, or take another --split.")
    found: list[Regret] = []
    for name, make in contenders(policies).items():
        found.append(regret(tree, make, name, range(seeds), episodes, split))
        if not as_json:
            click.echo(f"{name}: {found[-1].interval}", err=True)
    kinds = ", ".join(sorted({one.label for one in tree.environments.values()}))
    if as_json:
        told = {"tree": str(tree_file), "split": split, "environments": kinds, "episodes": episodes}
        click.echo(json.dumps({**told, "policies": [one.as_data(*found[:2]) for one in found]}))
    else:
        click.echo(f"\n{split} problems of {tree_file.name}: {len(tree.roots(split))}; times: {kinds}\n")
        click.echo(table(found))
