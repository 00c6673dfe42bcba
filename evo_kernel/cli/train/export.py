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
@click.option("--walks", default=0, show_default=True, help="Examples that the offline rewriter makes besides.")
@click.option("--task", "tasks", multiple=True, help="Walk on this task; again for more. Default: every built-in one.")
@click.option("--invented", default=0, show_default=True,
              help="References that are made up for half of the walks.")  # fmt: skip
@click.option("--any-witness", is_flag=True, help="Keep edits whose strategy does not show in the plan.")
@click.option("--min-gain", type=float, help="Least log(parent's time ÷ child's); 0 keeps what is not slower.")
@click.option("--strategy", "strategies", multiple=True, help="Keep this strategy of the catalogue; again for more.")
@click.option("--held-out", multiple=True, help="A family or a task that is not trained on; again for more.")
@click.option("--split", type=click.Choice(["all", "train", "held-out"]), default="all", show_default=True)
@click.option("--most", default=0, show_default=True, help="Characters of a kernel at most; 0: any number.")
@click.option("--seed", default=0, show_default=True, help="Of the walks.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Processes that walk.")
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

    SOURCES are population files and trees of transitions. An example is a task, a parent kernel and a strategy, and
    the edit that came of them, with the reasoning where an agent wrote it: a conversation that TRL reads as it is.
    Kept are edits that passed, whose strategy shows in the plan; each once. Walks are not judged: the rewriter keeps to
    what it can prove. Families of tasks are never split.

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
