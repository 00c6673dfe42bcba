"""`run` and `resume`: the search itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from evo_kernel.config import Config, load_config
from evo_kernel.errors import ConfigError

_GPUS = click.option("--gpus", metavar="N|all", help="GPUs of this machine that judge side by side; 1 if left out.")


@click.command()
@click.argument("task", required=False)
@click.option("--population", type=click.Path(path_type=Path), help="Population file; TASK.db here if left out.")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="A TOML file, or the name of a shipped one."
)
@click.option(
    "--start-from",
    type=click.Path(path_type=Path),
    help="Plant the best kernels of another population, too.",
)
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), help="cuda measures, cpu models, auto takes what is there."
)
@_GPUS
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one configuration key; repeatable."
)
@click.option("--unconfined", is_flag=True, help="Go on where candidate code cannot be confined at all.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; judge the first kernel; search nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def run(
    task: str | None,
    population: Path | None,
    config_file: Path | None,
    start_from: Path | None,
    device: str | None,
    gpus: str | None,
    overrides: tuple[str, ...],
    unconfined: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Search for a faster kernel for TASK: a built-in name (`evo-kernel tasks list`) or the path of a task file.

    The default configuration is configs/quickstart.toml: offline operators, three minutes. The population file keeps
    everything; `evo-kernel resume` goes on with it.

    \b
    evo-kernel run softmax
    evo-kernel run my_op.py --set budget.hours=1 --set operators.policy=uniform
    evo-kernel run my_op.py --population longer.db --start-from my_op.db

    Exit codes: 0 a kernel passed; 1 none did; 2 a mistake that you can mend; 3 the machine failed; 130 interrupted
    (what was found is kept, and `resume` goes on).
    """
    extra = [f"judge.unconfined={str(unconfined).lower()}"] if unconfined else []
    config = load_config(config_file or Path("configs/quickstart.toml"), [*overrides, *extra])
    named = {"task": task, "population": population, "start_from": start_from, "device": device, "gpus": gpus}
    config = config.model_copy(update={key: value for key, value in named.items() if value is not None})
    from evo_kernel.cli import compose

    loaded = compose.task_of(config)
    path = compose.population_path(config, loaded)
    config = config.model_copy(update={"task": compose.lasting_name(loaded), "population": path})
    if dry_run:
        _dry_run(config, loaded, path)
        return
    if path.exists():
        raise ConfigError(
            f"{path} exists already: go on with `evo-kernel resume {path}`, or name another --population."
        )
    _search(config, loaded, path, create=True, as_json=as_json)


@click.command()
@click.argument("population", type=click.Path(path_type=Path))
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Another device; its elites are measured first."
)
@_GPUS
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one configuration key; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def resume(population: Path, device: str | None, gpus: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Go on with POPULATION under the configuration that it was started with.

    What was spent counts: raise a budget to search on.

    \b
    evo-kernel resume softmax.db --set budget.hours=1
    """
    from evo_kernel.cli import compose
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        stored = dict(reader.sessions()[-1].config)
    config = compose.resumed_config(population, stored)
    named = {key: value for key, value in {"device": device, "gpus": gpus}.items() if value is not None}
    if overrides or named:
        merged = load_config(None, overrides).model_dump(exclude_unset=True)
        config = compose.config_with(config, {**merged, **named})
    _search(config, compose.task_of(config), population, create=False, as_json=as_json)


def _search(config: Config, task: Any, path: Path, *, create: bool, as_json: bool) -> None:
    from evo_kernel.cli import compose, summary
    from evo_kernel.cli.printing import open_console
    from evo_kernel.observe.live import Progress

    console = open_console(stderr=as_json)
    notes = _warnings(task) if create else []  # told once: a resume is about the same task
    with compose.prepared(config, task, path, create) as parts:
        for note in notes:
            console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
        environment = parts.judge.environment
        gpus = len(parts.judge.stages.gpus)
        side_by_side = f", {gpus} GPUs side by side" if gpus > 1 else ""
        head = f"task {task.name} · {path} · scores are {environment.label}{side_by_side}"
        console.print(Text(head), soft_wrap=True)
        console.print(Text(summary.scale_line(environment)), soft_wrap=True)
        ledger = compose.ledger_of(config, parts.population)
        best, state = parts.population.best(), parts.judge.stages.state
        with Progress(console, environment, ledger.left, best, state) as progress:
            ended = compose.search(config, parts, progress, ledger)
        cut_off = max(progress.in_flight, len(parts.population.pending())) if ended.cause == "interrupted" else 0
        if as_json:
            click.echo(json.dumps(summary.as_data(parts, ended, path) | {"cut_off": cut_off}))
        else:
            summary.show(console, parts, ended, path, summary.raised(config, ended), cut_off)
    if progress.in_flight:
        _leave_at_once(summary.exit_code(ended))
    sys.exit(summary.exit_code(ended))


def _leave_at_once(code: int) -> None:
    """End the process under threads that were cut off: torch aborts it when the interpreter unwinds beside them.

    Population and judge are closed by now.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _warnings(task: Any) -> list[str]:
    from evo_kernel.tasks.probe import probe

    return [*task.notes, *(finding.sentence for finding in probe(task))]


def _dry_run(config: Config, task: Any, path: Path) -> None:
    from evo_kernel.fitness.judge import open_judge
    from evo_kernel.tasks.first import first_kernel
    from evo_kernel.types import Purpose

    first = first_kernel(task)
    click.echo(f"task        {task.name} ({task.path})")
    click.echo(f"population  {path}{' (exists: this would be a resume)' if path.exists() else ''}")
    click.echo(f"budget      {_listed(config.budget.model_dump(exclude_none=True)) or 'no limit'}")
    weights = config.operators
    mix = {"mtmc": weights.mtmc, "crossover": weights.crossover, **weights.installed}
    click.echo(f"operators   {', '.join(f'{name} at weight {weight:g}' for name, weight in mix.items())}")
    click.echo(f"policy      {weights.policy}, at most {weights.max_steps} step(s) a proposal")
    from evo_kernel.cli.compose import judge_settings

    with open_judge(task, device=config.device, settings=judge_settings(config), gpus=config.gpus) as judge:
        evaluation = judge.evaluate(first, Purpose.PROBE)
        click.echo(f"judge       {judge.environment.label}, {judge.environment.confinement}")
    click.echo(f"first kernel {evaluation.status}: {evaluation.reason or 'right on every check case'}")


def _listed(limits: dict[str, Any]) -> str:
    return ", ".join(f"{value:g} {name.replace('_', ' ')}" for name, value in limits.items())
