"""`train collect`: grow a tree of transitions."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from evo_kernel.cli.options import DEVICE, PATH, UNCONFINED
from operators.learning.families import HELD_OUT


@click.command()
@click.option("--out", required=True, type=PATH, help="The tree; its rows grow in OUT.rows/.")
@click.option("--tasks", default="", help="Comma-separated; all built-in tasks if empty. TASK@CASE: that case alone.")
@click.option("--narrowed/--whole", default=True, help="Whether each search case is a problem of its own, too.")
@click.option("--seconds", default=540.0, show_default=True, help="In all; 0: only pack what is there.")
@DEVICE
@click.option("--gpus", "processes", default=1, show_default=True, type=click.IntRange(1), help="One process each.")
@click.option("--slice", "slice_s", default=40.0, show_default=True, help="Seconds with a problem at a time.")
@click.option("--tune-plans", default=8, show_default=True, type=click.IntRange(0), help="Knob settings a kernel.")
@click.option("--threads", default=0, type=click.IntRange(0), help="Kernels at a time a process; 0: one a core, + 2.")
@click.option("--held-out", default=",".join(HELD_OUT), show_default=True, help="Families that are not trained on.")
@click.option("--seed", default=0, show_default=True, help="Of the order in which actions are tried.")
@UNCONFINED
def collect(
    out: Path,
    tasks: str,
    device: str,
    tune_plans: int,
    threads: int,
    held_out: str,
    seed: int,
    unconfined: bool,
    **collecting: Any,
) -> None:
    """Judge what the offline rewriter can do with the built-in tasks: a tree of transitions to learn from.

    Called again with the same --out, it goes on. A run that is killed loses only the kernels that were in flight: each
    is a row in OUT.rows/ as soon as it is judged, and the tree is packed from these at the end. Problems take turns,
    the one that had least time first, so that every part of a collection has all tasks.
    """
    from evo_kernel.app.train import collection
    from evo_kernel.app.train.collector import Want

    named = [name.strip() for name in tasks.split(",") if name.strip()]
    want = Want(device, tune_plans, threads, seed, held_out=tuple(held_out.split(",")), unconfined=unconfined)
    collection.collect(out, named, want, "evo-kernel " + shlex.join(sys.argv[1:]), **collecting)
