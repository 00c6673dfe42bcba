"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from operators.learning.shipped import TREE

POPULATION = click.argument("population", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
FIRST = click.option(
    "--first",
    "wanted",
    type=click.Choice(["auto", "compiled"]),
    default="auto",
    show_default=True,
    help="The first kernel: the seed or what lowering writes, or torch.compile's kernels.",
)
TREE_FILE = click.option(
    "--tree",
    "tree_file",
    type=click.Path(path_type=Path),
    default=TREE,
    show_default="the one that comes with evo-kernel",
    help="What `train collect` made.",
)
