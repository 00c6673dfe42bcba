"""`train collect`: problems in turn to the processes that judge, and a tree of what they judged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import click

from evo_kernel.app.train.collector import Want
from evo_kernel.app.train.problems import problem_names
from evo_kernel.app.train.workers import Order, print_problems, send
from evo_kernel.errors import UserError
from evo_kernel.tasks.loading import builtin_names
from operators.learning.pack_tree import assemble

ENDING_S = 20.0
"""Of the time: closing and packing."""


def collect(
    out: Path,
    tasks: Sequence[str],
    want: Want,
    command: str,
    *,
    narrowed: bool = True,
    seconds: float = 540.0,
    processes: int = 1,
    slice_s: float = 40.0,
) -> None:
    """Collect, and pack the tree into `out`; prints what came of it. No seconds: pack only what is there.

    `tasks`: empty for the built-in ones. `narrowed`: each search case is a problem of its own, too. Raises
    UserError.
    """
    began = time.monotonic()
    folder = out.with_name(out.name + ".rows")
    folder.mkdir(parents=True, exist_ok=True)
    if seconds > 0:
        groups = [[name] if "@" in name else problem_names(name, narrowed) for name in tasks or builtin_names()]
        in_turn = tuple(name for names in zip_longest(*groups) for name in names if name)
        end = began + max(seconds - ENDING_S, 1.0)
        send(Order(in_turn, folder, processes, slice_s, end), want)
    tree = assemble(folder, command)
    if not tree.states:
        raise UserError(
            f"nothing was judged: {folder} has no rows of kernels that pass. What was printed above says why."
        )
    size = tree.save(out)
    print_problems(tree, folder)
    click.echo(
        f"{tree.settings:,} knob settings of {tree.candidates:,} kernels judged, {tree.plans:,} distinct plans of one "
        f"case each; {time.monotonic() - began:.0f} s\n{out}: {size / 1e6:.2f} MB"
    )
