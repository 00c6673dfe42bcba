"""`train collect`: problems in turn, each grown by a judge for a slice of time, and a tree of what was judged."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import click

from evo_kernel.app.train.collector import Grower, Want
from evo_kernel.app.train.problems import problem_names, rows_of
from evo_kernel.errors import InfraError, UserError
from evo_kernel.tasks.loading import builtin_names
from operators.learning.collecting import assemble, read_rows
from operators.learning.tree import Tree

ENDING_S = 20.0
"""Of the time: closing and packing."""
NARROWED = 0.6  # of the time that a whole task gets
DRAIN_S = 25.0  # for what is in flight at the end of a slice
WORTH_S = 15.0  # no problem is opened for less
OPENINGS = 6  # that may fail before the collection ends


def collect(
    out: Path,
    tasks: Sequence[str],
    want: Want,
    command: str,
    *,
    narrowed: bool = True,
    seconds: float = 540.0,
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
        in_turn = [name for names in zip_longest(*groups) for name in names if name]
        _grow(in_turn, folder, want, slice_s, began + max(seconds - ENDING_S, 1.0))
    tree = assemble(folder, command)
    if not tree.states:
        raise UserError(
            f"nothing was judged: {folder} has no rows of kernels that pass. What was printed above says why."
        )
    size = tree.save(out)
    _print_problems(tree, folder)
    click.echo(
        f"{tree.settings:,} knob settings of {tree.candidates:,} kernels judged, {tree.plans:,} distinct plans of one "
        f"case each; {time.monotonic() - began:.0f} s\n{out}: {size / 1e6:.2f} MB"
    )


def _grow(problems: Sequence[str], folder: Path, want: Want, slice_s: float, end: float) -> None:
    """Slices of problems until `end` (of time.monotonic), that which had the least time first."""
    spent_s = {name: read_rows(rows_of(folder, name)).seconds for name in problems}
    ceilings: Mapping[str, float] = {}
    failed = 0
    while spent_s and failed < OPENINGS and time.monotonic() < end - WORTH_S:
        name = min(spent_s, key=lambda name: spent_s[name] / _weight(name))
        began = time.monotonic()
        try:  # baselines are those of the whole task, also where one of its cases is a problem
            baselines = read_rows(rows_of(folder, name.partition("@")[0])).baselines
            grower = Grower(name, want, rows_of(folder, name), baselines)
        except Exception as error:  # noqa: BLE001 (another may open)
            failed += 1
            del spent_s[name]
            click.echo(
                f"{name} does not open: {error if isinstance(error, UserError) else traceback.format_exc()[-1500:]}"
            )
            continue
        grower.know(ceilings)
        more = True
        try:
            more = grower.grow(min(time.monotonic() + slice_s * _weight(name), end - 2.0))
            ceilings = ceilings or grower.ceilings
        except InfraError as error:
            grower.trouble.append(str(error))
        clean = grower.drain(min(time.monotonic() + DRAIN_S, end))
        seconds = time.monotonic() - began
        grower.close(seconds)
        spent_s[name] += seconds
        if not more:
            del spent_s[name]
        _tell(grower, seconds, more, clean)


def _weight(problem: str) -> float:
    return NARROWED if "@" in problem else 1.0


def _tell(grower: Grower, seconds: float, more: bool, clean: bool) -> None:
    rows = grower.rows
    passed = sum(row["status"] == "passed" for row in rows.candidates.values())
    click.echo(
        f"{grower.name}: {passed} of {len(rows.candidates)} kernels pass, {len(rows.edges)} edges, {rows.settings} "
        f"settings judged; {seconds:.0f} s{'' if more else '; exhausted'}{'' if clean else '; some were cut off'}"
        + "".join(f"\n    trouble: {one}" for one in grower.trouble[:3])
        + (f"\n    {len(grower.trouble)} troubles" if len(grower.trouble) > 3 else "")
    )


def _print_problems(tree: Tree, folder: Path) -> None:
    """A line a problem."""
    titles = ("problem", "split", "kernels", "states", "edges", "settings", "depth", "best gain", "seconds")
    click.echo("{:<34}{:<10}{:>8}{:>8}{:>8}{:>10}{:>7}{:>11}{:>9}".format(*titles))
    roots = {one.task: one for one in tree.roots()}
    every = {rows.problem.name: rows for rows in map(read_rows, sorted(folder.glob("*.jsonl"))) if rows.problem}
    for name, problem in sorted(tree.problems.items()):
        states = [one for one in tree.states.values() if one.task == name]
        rows = every[name]
        gain = f"{math.exp(tree.best_gain(roots[name].id)):.3f}x" if name in roots else "-"
        click.echo(
            f"{name[:33]:<34}{problem.split:<10}{len(rows.candidates):>8}{len(states):>8}"
            f"{sum(len(tree.edges(one.id)) for one in states):>8}{rows.settings:>10}"
            f"{max((one.depth for one in states), default=0):>7}{gain:>11}{rows.seconds:>9.0f}"
        )
