"""`train collect`: grow a tree of transitions."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from evo_kernel.errors import UserError
from operators.learning.decontamination import overlaps
from operators.learning.families import HELD_OUT
from operators.learning.tree import Tree

ENDING_S = 20.0
"""Of --seconds: closing and packing."""


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The tree; its rows grow in OUT.rows/.")
@click.option("--tasks", default="", help="Comma-separated; all built-in tasks if empty. TASK@CASE: that case alone.")
@click.option("--narrowed/--whole", default=True, help="Whether each search case is a problem of its own, too.")
@click.option("--seconds", default=540.0, show_default=True, help="In all; 0: only pack what is there.")
@click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]), help="Where kernels are judged.")
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(1), help="One process each.")
@click.option("--slice", "slice_s", default=40.0, show_default=True, help="Seconds with a problem at a time.")
@click.option("--tune-plans", default=8, show_default=True, type=click.IntRange(0), help="Knob settings a kernel.")
@click.option("--threads", default=0, type=click.IntRange(0), help="Kernels at a time a process; 0: one a core, + 2.")
@click.option("--held-out", default=",".join(HELD_OUT), show_default=True, help="Families that are not trained on.")
@click.option("--seed", default=0, show_default=True, help="Of the order in which actions are tried.")
@click.option(
    "--against",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="A benchmark's checkout: refuse a tree that holds code of it.",
)
@click.option("--unconfined", is_flag=True, help="Go on where kernels cannot be confined at all.")
def collect(
    out: Path,
    tasks: str,
    narrowed: bool,
    seconds: float,
    device: str,
    gpus: int,
    slice_s: float,
    tune_plans: int,
    threads: int,
    held_out: str,
    seed: int,
    against: tuple[Path, ...],
    unconfined: bool,
) -> None:
    """Judge what the offline rewriter can do with the built-in tasks: a tree of transitions to learn from.

    Called again with the same --out, it goes on. A run that is killed loses only the kernels that were in flight: each
    is a row in OUT.rows/ as soon as it is judged, and the tree is packed from these at the end. Problems take turns,
    the one that had least time first, so that every part of a collection has all tasks.
    """
    from evo_kernel.app.train.collector import Want
    from evo_kernel.app.train.problems import problem_names
    from evo_kernel.app.train.workers import Order, print_problems, send
    from evo_kernel.tasks.loading import builtin_names
    from operators.learning.pack_tree import assemble

    began = time.monotonic()
    folder = out.with_name(out.name + ".rows")
    folder.mkdir(parents=True, exist_ok=True)
    if seconds > 0:
        chosen = [name.strip() for name in tasks.split(",") if name.strip()] or list(builtin_names())
        problems = _in_turn([[name] if "@" in name else problem_names(name, narrowed) for name in chosen])
        want = Want(device, tune_plans, threads, seed, held_out=tuple(held_out.split(",")), unconfined=unconfined)
        send(Order(tuple(problems), folder, gpus, slice_s, began + max(seconds - ENDING_S, 1.0)), want)
    tree = assemble(folder, "evo-kernel " + shlex.join(sys.argv[1:]))
    if not tree.states:
        raise UserError(
            f"nothing was judged: {folder} has no rows of kernels that pass. What was printed above says why."
        )
    _refuse_contaminated(tree, against)
    size = tree.save(out)
    print_problems(tree, folder)
    click.echo(
        f"{tree.settings:,} knob settings of {tree.candidates:,} kernels judged, {tree.plans:,} distinct plans of one "
        f"case each; {time.monotonic() - began:.0f} s\n{out}: {size / 1e6:.2f} MB"
    )


def _refuse_contaminated(tree: Tree, against: Sequence[Path]) -> None:
    """Raises UserError, naming problems and files."""
    for folder in against:
        found = overlaps(tree, folder)
        if found:
            named = "; ".join(f"{one.problem} and {one.file} ({one.line[:60]})" for one in found[:5])
            raise UserError(
                f"{len(found)} problems share code with {folder}: {named}. Leave these tasks out: remove their rows "
                "and collect with --tasks."
            )
        click.echo(f"no code of {folder} is in the tree")


def _in_turn(groups: Sequence[Sequence[str]]) -> list[str]:
    """The first of each group, then the second of each, and so on."""
    longest = max(map(len, groups), default=0)
    return [group[at] for at in range(longest) for group in groups if at < len(group)]
