"""`suite`: a budgeted search for each of many tasks, resumable, with one report."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evo_kernel.cli.options import DEVICE, JSON, JUDGE, PATH, SET, echo
from evo_kernel.errors import UserError
from evo_kernel.judge_place import LOCAL, RAY

if TYPE_CHECKING:
    from evo_kernel.observe.suites import SuiteRow


@click.command()
@click.argument("suite")
@click.option("--to", "folder", type=PATH, required=True, help="Folder for populations, results and report.")
@click.option("--minutes", default=3.0, show_default=True, help="Minutes of search for each task, over all sessions.")
@click.option("--evaluations", type=int, help="Evaluations for each task, at most, over all sessions.")
@click.option("--only", multiple=True, metavar="GLOB", help="Only tasks that match, such as 'level1/2*'; repeatable.")
@click.option("--except", "but", multiple=True, metavar="GLOB", help="Leave out tasks that match; repeatable.")
@click.option(
    "--config", "config_file", metavar="FILE", help="A run configuration; configs/quickstart.toml if left out."
)
@SET
@DEVICE
@JUDGE
@click.option(
    "--gpus",
    metavar="N|all",
    help="Searches in parallel, each with its share of the cores; 1 if left out. `all`: one a GPU. More than there are "
    "GPUs take turns on them and share their memory, which large tensors fill. Without a GPU, or with judges "
    "elsewhere, they share the cores.",
)
@click.option(
    "--stock/--no-stock",
    default=True,
    show_default=True,
    help="Also ask KernelBench's own harness about each kernel found.",
)
@click.option("--retry", is_flag=True, help="Repeat failed tasks, and harnesses that gave no verdict.")
@JSON
def suite(
    suite: str,
    folder: Path,
    minutes: float,
    evaluations: int | None,
    only: tuple[str, ...],
    but: tuple[str, ...],
    config_file: str | None,
    overrides: tuple[str, ...],
    device: str,
    judge_at: str | None,
    gpus: str | None,
    stock: bool,
    retry: bool,
    as_json: bool,
) -> None:
    """Search for a kernel for every task of SUITE, each within its own budget.

    SUITE: `builtin`, a benchmark's checkout or a part of it (docs/guides/benchmarks.md), or a text file with a TASK
    a line. The same command again continues where it stopped; with a larger budget it searches further. A task that
    fails is named in the report and does not stop the others.

    \b
    evo-kernel suite builtin --to runs/builtin
    evo-kernel suite kernelbench:KernelBench/level1 --to runs/level1 --minutes 5 --only 'level1/2*'
    evo-kernel suite kernelbench:KernelBench/level1 --to runs/level1 --device cuda --gpus all

    Exit codes: 0 every task has a kernel that passed; 1 some have none; 2 a mistake that you can correct; 130
    interrupted.
    """
    from evo_kernel.app.signals import ending_twice
    from evo_kernel.app.suite.lanes import lanes_of
    from evo_kernel.app.suite.runs import SuiteRun, alone_in
    from evo_kernel.app.suite.search import SearchOptions, tasks_of
    from evo_kernel.processes import kill_descendants

    if minutes <= 0 or (evaluations is not None and evaluations < 1):
        raise UserError("a suite needs --minutes above 0, and --evaluations of 1 or more")
    place = judge_at or LOCAL
    chosen, lanes = tasks_of(suite, only, but), lanes_of(gpus, device if place == LOCAL else "cpu")
    with alone_in(folder), _shared(place, device, config_file, overrides) as at:
        options = SearchOptions(config_file, overrides, device, at)
        run = SuiteRun(folder, chosen, minutes, evaluations, options, retry, lanes, stock)
        with ending_twice(lambda name: run.halt.set(), lambda name: kill_descendants()):
            for row in run.rows():
                echo(_line(row), err=as_json)
        data, written = run.report(suite)
    told = f"\n{written}\nwrote {folder / 'report.md'}, report.html and report.json"
    click.echo(json.dumps(data) if as_json else told)
    if data["interrupted"]:
        sys.exit(130)
    if not all(row.correct for row in run.found()):
        sys.exit(1)


def _shared(
    place: str, device: str, config_file: str | None, overrides: tuple[str, ...]
) -> contextlib.AbstractContextManager[str]:
    """The place that every search is given."""
    if not place.startswith(RAY):
        return contextlib.nullcontext(place)
    from evo_kernel.app.compose import judge_settings
    from evo_kernel.app.judges import shared_place
    from evo_kernel.app.run_config import run_config

    settings = judge_settings(run_config(Path(config_file) if config_file else None, overrides, {}))
    return shared_place(place, device, settings, lambda line: echo(line, err=True))


def _line(row: SuiteRow) -> str:
    told = [row.status, f"first kernel {row.first}"]
    if (gain := row.gain()) is not None:
        told.append(f"{gain:.2f}x the first kernel")
    if (ratio := row.speedup()) is not None:
        told.append(f"{ratio:.2f}x the fastest baseline")
    if row.stock is not None:
        ratio = f", {row.stock.speedup:.2f}x its eager" if row.stock.speedup else ""
        told.append(f"stock: {row.stock.verdict}{ratio}" + (f" ({row.stock.reason})" if row.stock.reason else ""))
    told += [f"{row.minutes:.1f} min", row.environment]
    return f"{row.label}: {', '.join(word for word in told if word)}" + (f": {row.reason}" if row.reason else "")
