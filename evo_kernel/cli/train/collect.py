"""`train collect`: grow a tree of transitions."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from evo_kernel.cli.options import DEVICE, PATH, UNCONFINED
from operators.learning.tree import HELD_OUT


@click.command()
@click.option("--out", required=True, type=PATH, help="The tree to write; its rows are collected in OUT.rows/.")
@click.option(
    "--tasks", default="", help="Comma-separated tasks; default: all built-in ones. TASK@CASE: only that case."
)
@click.option("--narrowed/--whole", default=True, help="Also make each search case a separate problem.")
@click.option("--seconds", default=540.0, show_default=True, help="Total time; 0: only pack collected rows.")
@DEVICE
@click.option("--slice", "slice_s", default=40.0, show_default=True, help="Seconds before the next problem's turn.")
@click.option("--tune-plans", default=8, show_default=True, type=click.IntRange(0), help="Knob settings per kernel.")
@click.option("--threads", default=0, type=click.IntRange(0), help="Kernels in parallel; 0: cores + 2.")
@click.option("--held-out", default=",".join(HELD_OUT), show_default=True, help="Task families excluded from training.")
@click.option("--seed", default=0, show_default=True, help="Seed of the order of actions.")
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
    """Judge the offline rewriter's edits of the built-in tasks, and write a tree of transitions for training.

    With the same --out, a collection continues. Each judged kernel is a row in OUT.rows/, so a killed run loses only
    kernels that were being judged; the tree is packed from the rows at the end. The problem with the least time so far
    is next, so that all tasks are covered at any time. Several commands with other --tasks may collect into one --out
    at the same time, each with its own CUDA_VISIBLE_DEVICES.
    """
    from evo_kernel.app.train import collection
    from evo_kernel.app.train.collector import Want
    from evo_kernel.fitness.gpus import usable_cores

    named = [name.strip() for name in tasks.split(",") if name.strip()]
    want = Want(
        device,
        tune_plans,
        threads or usable_cores() + 2,
        seed,
        held_out=tuple(held_out.split(",")),
        unconfined=unconfined,
    )
    collection.collect(out, named, want, "evo-kernel " + shlex.join(sys.argv[1:]), **collecting)
