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
@click.option("--policy", "policies", multiple=True, type=PATH, help="A checkpoint; repeatable.")
@click.option(
    "--split",
    type=click.Choice(["held-out", "train"]),
    default="held-out",
    show_default=True,
    help="Evaluate on held-out tasks or on training tasks.",
)
@click.option(
    "--seeds", type=click.IntRange(min=2), default=5, show_default=True, help="Number of seeds, for intervals."
)
@click.option("--episodes", type=click.IntRange(min=1), default=10, show_default=True, help="Episodes per problem.")
@JSON
def evaluate(
    tree_file: Path,
    policies: tuple[Path, ...],
    split: Split,
    seeds: int,
    episodes: int,
    as_json: bool,
) -> None:
    """Compare policies with uniform choice and the bandit on tasks that were not used for training.

    Regret: the best log gain within eight known steps from a task's first kernel, minus the policy's; intervals are
    95 % over seeds. The bandit starts untrained on every problem and learns over its episodes.
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
