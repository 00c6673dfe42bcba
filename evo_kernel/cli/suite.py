"""`suite`: a budgeted search for each of many tasks, resumable, with one report."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import click

from evo_kernel.errors import UserError


@click.command()
@click.argument("suite")
@click.option("--to", "folder", type=click.Path(path_type=Path), required=True, help="Populations, results and report.")
@click.option("--minutes", default=3.0, show_default=True, help="Of search for each task, over all turns.")
@click.option("--evaluations", type=int, help="Evaluations for each task, at most, over all turns.")
@click.option(
    "--turns", default=1, show_default=True, help="Go round the tasks so many times, a part of the budget each."
)
@click.option("--only", multiple=True, metavar="GLOB", help="Tasks whose name fits, such as 'level1/2*'; repeatable.")
@click.option("--limit", type=int, help="The first so many tasks only.")
@click.option(
    "--config", "config_file", metavar="FILE", help="A run configuration; configs/quickstart.toml if left out."
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one configuration key; repeatable."
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Where kernels are judged.")
@click.option("--gpus", metavar="N|all", help="GPUs of this machine that judge side by side; 1 if left out.")
@click.option("--retry", is_flag=True, help="Try again what failed before it searched.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def suite(
    suite: str,
    folder: Path,
    minutes: float,
    evaluations: int | None,
    turns: int,
    only: tuple[str, ...],
    limit: int | None,
    config_file: str | None,
    overrides: tuple[str, ...],
    device: str,
    gpus: str | None,
    retry: bool,
    as_json: bool,
) -> None:
    """Search for a kernel for every task of SUITE, each within its own budget.

    SUITE: `builtin`, a benchmark's checkout or a part of it (docs/importers.md), or a text file with a TASK a line.
    The same command again goes on where it stopped; with a larger budget it searches on. A task that fails is named
    in the report and ends nothing.

    \b
    evo-kernel suite builtin --to runs/builtin
    evo-kernel suite kernelbench:KernelBench/level1 --to runs/level1 --minutes 5 --only 'level1/2*'
    evo-kernel suite tasks.txt --to runs/mine --turns 4 --minutes 20

    Exit codes: 0 every task has a kernel that passed; 1 some have none; 2 a mistake that you can mend; 130 interrupted.
    """
    from evo_kernel.cli.suite_runs import Budget, SuiteRun, tasks_of
    from evo_kernel.observe import document, suites

    if minutes <= 0 or turns < 1 or (evaluations is not None and evaluations < 1):
        raise UserError("a suite needs --minutes above 0, and --turns and --evaluations of 1 or more")
    chosen = tasks_of(suite, only, limit)
    named = [word for key, value in (("--config", config_file), ("--gpus", gpus)) if value for word in (key, value)]
    extra = ["--device", device, *named, *(word for override in overrides for word in ("--set", override))]
    run = SuiteRun(folder, chosen, Budget(minutes, evaluations, turns), extra, retry=retry)
    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as ^C: what is under way is finished and kept
    try:
        for row, turn in run.rows():
            click.echo(_line(row, turn, turns), err=as_json)
    except KeyboardInterrupt:
        interrupted = True
    rows = run.found()
    title = f"Suite {suite}"
    blocks = suites.report(title, rows)
    report = document.markdown(blocks)
    (folder / "report.md").write_text(report, encoding="utf-8")
    (folder / "report.html").write_text(document.html(title, blocks), encoding="utf-8")
    data = {"suite": suite, "minutes": minutes, "interrupted": interrupted} | suites.as_data(rows)
    (folder / "report.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    click.echo(
        json.dumps(data) if as_json else f"\n{report}\nwrote {folder / 'report.md'}, report.html and report.json"
    )
    if interrupted:
        sys.exit(130)
    if not all(row.correct for row in rows):
        sys.exit(1)


def _line(row: object, turn: int, turns: int) -> str:
    from evo_kernel.observe.suites import SuiteRow

    assert isinstance(row, SuiteRow)
    told = [row.status, f"first kernel {row.first}"]
    if row.gain is not None:
        told.append(f"{row.gain:.2f}x the first kernel")
    if (ratio := row.speedup()) is not None:
        told.append(f"{ratio:.2f}x the fastest baseline")
    told += [f"{row.minutes:.1f} min", row.environment]
    turn_told = f" (turn {turn} of {turns})" if turns > 1 else ""
    return f"{row.label}{turn_told}: {', '.join(word for word in told if word)}" + (
        f": {row.reason}" if row.reason else ""
    )
