"""`train export-sft`: what searches found, as examples to learn from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from evo_kernel.cli.options import JSON, PATH
from evo_kernel.errors import UserError


@click.command("export-sft")
@click.argument("sources", nargs=-1, type=PATH)
@click.option("--out", required=True, type=PATH, help="The file of examples to write (JSON lines).")
@click.option(
    "--walks", default=0, show_default=True, help="Additional examples from random edits of the offline rewriter."
)
@click.option("--task", "tasks", multiple=True, help="Task for walks; repeatable. Default: every built-in one.")
@click.option("--invented", default=0, show_default=True,
              help="Generated references, used for half of the walks.")  # fmt: skip
@click.option("--any-witness", is_flag=True, help="Also keep edits whose strategy the plan does not show.")
@click.option("--min-gain", type=float, help="Minimal log(parent's time ÷ child's); 0 keeps edits that are not slower.")
@click.option("--strategy", "strategies", multiple=True, help="Keep only this strategy; repeatable.")
@click.option("--held-out", multiple=True, help="A task family or task excluded from training; repeatable.")
@click.option("--split", type=click.Choice(["all", "train", "held-out"]), default="all", show_default=True)
@click.option("--most", default=0, show_default=True, help="Maximal characters of a kernel; 0: unlimited.")
@click.option("--seed", default=0, show_default=True, help="Seed of the walks.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Processes for walks.")
@JSON
def export_sft(
    sources: tuple[Path, ...],
    out: Path,
    walks: int,
    any_witness: bool,
    min_gain: float | None,
    strategies: tuple[str, ...],
    most: int,
    as_json: bool,
    **making: Any,
) -> None:
    """Write examples of edits for the supervised training of a coder.

    SOURCES are population files and trees of transitions. An example is a conversation in TRL's format: a task, a
    parent kernel, a strategy, and the resulting edit, with the reasoning if an agent wrote it. Edits are kept once if
    they passed and the plan shows the strategy. Edits of walks are not judged: the rewriter only makes provably correct
    ones. A task family is never split.

    \b
    evo-kernel train export-sft softmax.db matmul.db --out edits.jsonl --min-gain 0
    evo-kernel train export-sft --walks 4000 --held-out softmax --out walks.jsonl
    evo-kernel train export-sft --walks 60000 --invented 600 --workers 16 --out walks.jsonl
    """
    from evo_kernel.app.train.examples import export_examples
    from operators.learning.coder.examples import Wanted

    if not sources and not walks:
        raise UserError(
            "nothing to export: name populations or trees, or let the rewriter make examples with --walks N"
        )
    if making["invented"] and not walks:
        raise UserError("--invented makes references for walks: say --walks N")
    wanted = Wanted(not any_witness, min_gain, frozenset(strategies), most)
    counts = export_examples(out, sources, wanted, walks=walks, **making)
    if as_json:
        click.echo(json.dumps(counts))
        return
    click.echo(f"{counts['examples']} examples in {out}, {counts['with_reasoning']} with reasoning")
    for what in ("splits", "families", "strategies"):
        click.echo(f"  {what}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts[what].items())))
