"""`train collect`: problems in turn, each grown by a judge for a slice of time, and a tree of what was judged."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import click

from evo_kernel.app.train.collector import Grower
from evo_kernel.app.train.packing import Grown, grown_in, joined
from evo_kernel.app.train.problems import population_of, problem_names
from evo_kernel.config import Config
from evo_kernel.errors import UserError
from evo_kernel.tasks.loading import builtin_names
from populations.reading import PopulationReader
from populations.statistics import wall_s

ENDING_S = 20.0
"""Of the time: closing and packing."""
NARROWED = 0.6  # of the time that a whole task gets
DRAIN_S = 25.0  # for what is in flight at the end of a slice
WORTH_S = 15.0  # no problem is opened for less
OPENINGS = 6  # that may fail before the collection ends


def collect(
    out: Path,
    tasks: Sequence[str],
    config: Config,
    command: str,
    *,
    threads: int,
    held_out: tuple[str, ...],
    narrowed: bool = True,
    seconds: float = 540.0,
    slice_s: float = 40.0,
) -> None:
    """Collect, and pack the tree into `out`; prints what came of it. No seconds: pack only what is there.

    `tasks`: empty for the built-in ones. `threads`: kernels in flight. `held_out`: families. `narrowed`: each search
    case is a problem of its own, too. Raises UserError.
    """
    began = time.monotonic()
    folder = out.with_name(out.name + ".populations")
    folder.mkdir(parents=True, exist_ok=True)
    if seconds > 0:
        groups = [[name] if "@" in name else problem_names(name, narrowed) for name in tasks or builtin_names()]
        in_turn = [name for names in zip_longest(*groups) for name in names if name]
        _grow(in_turn, folder, config, threads, slice_s, began + max(seconds - ENDING_S, 1.0))
    parts = grown_in(folder, held_out)
    tree = joined(parts, command)
    if not tree.states:
        raise UserError(f"nothing was judged: {folder} holds no kernel that passes. What was printed above says why.")
    size = tree.save(out)
    _print_problems(parts)
    click.echo(
        f"{tree.settings:,} knob settings of {tree.candidates:,} kernels judged, {tree.plans:,} distinct plans of one "
        f"case each; {time.monotonic() - began:.0f} s\n{out}: {size / 1e6:.2f} MB"
    )


def _grow(problems: Sequence[str], folder: Path, config: Config, threads: int, slice_s: float, end: float) -> None:
    """Slices of problems until `end` (of time.monotonic), that which had the least time first."""
    spent_s = {name: _spent_s(population_of(folder, name)) for name in problems}
    failed = 0
    while spent_s and failed < OPENINGS and time.monotonic() < end - WORTH_S:
        name = min(spent_s, key=lambda name: spent_s[name] / _weight(name))
        began = time.monotonic()
        try:
            grower = Grower(name, config, threads, population_of(folder, name))
        except Exception as error:  # noqa: BLE001 (another may open)
            failed += 1
            del spent_s[name]
            click.echo(
                f"{name} does not open: {error if isinstance(error, UserError) else traceback.format_exc()[-1500:]}"
            )
            continue
        more = grower.grow(min(time.monotonic() + slice_s * _weight(name), end - 2.0))
        clean = grower.drain(min(time.monotonic() + DRAIN_S, end))
        seconds = time.monotonic() - began
        _tell(grower, seconds, more, clean)
        grower.close()
        spent_s[name] += seconds
        if not more:
            del spent_s[name]


def _spent_s(path: Path) -> float:
    if not path.exists():
        return 0.0
    with PopulationReader(path) as reader:
        return wall_s(reader.connection)


def _weight(problem: str) -> float:
    return NARROWED if "@" in problem else 1.0


def _tell(grower: Grower, seconds: float, more: bool, clean: bool) -> None:
    counted = grower.population.counters()
    click.echo(
        f"{grower.name}: {counted.passed} of {counted.candidates} kernels pass, {counted.charged} evaluations; "
        f"{seconds:.0f} s{'' if more else '; exhausted'}{'' if clean else '; some were cut off'}"
        + "".join(f"\n    trouble: {one}" for one in grower.trouble[:3])
        + (f"\n    {len(grower.trouble)} troubles" if len(grower.trouble) > 3 else "")
    )


def _print_problems(parts: Sequence[Grown]) -> None:
    """A line a problem."""
    titles = ("problem", "split", "kernels", "states", "edges", "settings", "depth", "best gain", "seconds")
    click.echo("{:<34}{:<10}{:>8}{:>8}{:>8}{:>10}{:>7}{:>11}{:>9}".format(*titles))
    for part in parts:
        tree, states = part.tree, part.tree.states.values()
        gain = "".join(f"{math.exp(tree.best_gain(root.id)):.3f}x" for root in tree.roots())
        click.echo(
            f"{part.problem.name[:33]:<34}{part.problem.split:<10}{tree.candidates:>8}{len(states):>8}"
            f"{sum(len(tree.edges(one.id)) for one in states):>8}{tree.settings:>10}"
            f"{max((one.depth for one in states), default=0):>7}{gain or '-':>11}{part.seconds:>9.0f}"
        )
