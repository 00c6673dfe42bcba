"""`run` and `resume`: the search itself. `confirm`: what a search does at its end, for one candidate."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from evo_kernel.app.preflight import nobody_at
from evo_kernel.app.run_config import ModelOptions, run_config, with_duration
from evo_kernel.champions import GALLERY
from evo_kernel.cli.options import (
    DEVICES,
    JSON,
    JUDGE,
    JUDGE_DEVICE,
    PATH,
    POPULATION,
    SET,
    UNCONFINED,
    UNTIL_WAITING,
    WAIT,
    Duration,
    echo,
    number_of,
    with_models,
)
from evo_kernel.errors import ConfigError
from evo_kernel.judge_place import LOCAL

_GPUS = click.option("--gpus", metavar="N|all", help="GPUs of this machine that judge in parallel; 1 if left out.")


def _for(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--for", "for_s", type=Duration(), metavar="TIME", help=text)


@click.command()
@click.argument("task", required=False)
@_for("How long, like 90s, 10m, 8h: instead of the configured hours and evaluations.")
@click.option("--population", type=PATH, help="Population file; TASK.db here if left out.")
@click.option("--config", "config_file", type=PATH, help="A TOML file, or the name of a shipped one.")
@click.option(
    "--seed", "seeds", type=PATH, multiple=True, metavar="FILE",
    help="Also start from the kernel in this file, a module with `run`, or `package.module:function`; repeatable.",
)  # fmt: skip
@click.option(
    "--start-from", metavar="POPULATION|gallery", callback=lambda _, __, at: at if at in (None, GALLERY) else Path(at),
    help="Also start from the best kernels of this population, or from the champion of `evo-kernel champions TASK`.",
)  # fmt: skip
@click.option(
    "--first",
    metavar="all|auto|FUNCTION",
    help="Roots. auto: the first kernel (the task's seed, else a lowered one); all (default): torch.compile's and, of "
    "products and convolutions, a template too; "
    "FUNCTION: an installed package's `package.module:function`, in place of the first kernel.",
)
@click.option("--device", type=DEVICES, help="cuda measures times, cpu models them, auto takes a GPU if there is one.")
@_GPUS
@JUDGE
@UNTIL_WAITING
@SET
@UNCONFINED
@with_models
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print what would be done and how long the budget lasts, judge the first kernel, and stop. No key is needed.",
)
@JSON
def run(
    for_s: float | None,
    config_file: Path | None,
    overrides: tuple[str, ...],
    unconfined: bool,
    models: ModelOptions,
    dry_run: bool,
    as_json: bool,
    seeds: tuple[Path, ...],
    judge_at: str | None,
    until_waiting: bool,
    **named: object,
) -> None:
    """Search for a faster kernel for TASK: a built-in name (`evo-kernel tasks list`) or the path of a task file.

    The default configuration is configs/quickstart.toml: offline operators, three minutes or 60 evaluations. With a
    --model it is configs/agents.toml: an hour, five dollars, offline operators beside the model. The population file
    keeps everything; `evo-kernel resume` continues it.

    \b
    evo-kernel run softmax
    evo-kernel run my_op.py --for 1h --set operators.policy=uniform
    evo-kernel run my_op.py --seed my_kernel.py
    evo-kernel run my_rms.py --first liger_kernel.ops.rms_norm:LigerRMSNormFunction.apply
    evo-kernel run my_op.py --population longer.db --start-from my_op.db
    evo-kernel run my_op.py --model anthropic/NAME --set budget.dollars=2
    evo-kernel run my_op.py --model NAME --base-url http://localhost:8000/v1
    evo-kernel run my_op.py --judge spool:/shared/judging

    Exit codes: 0 a kernel passed; 1 none did; 2 a mistake that you can correct; 3 the machine failed; 130 interrupted
    (results are kept; `resume` continues).
    """
    began = time.monotonic()
    judging = ["judge.unconfined=true"] if unconfined else []
    judging += [f"judge.at={judge_at}"] if judge_at else []
    config = run_config(config_file, [*overrides, *judging], {**named, "seeds": seeds or None}, models)
    config = with_duration(config, for_s / 3600 if for_s else None, overrides)
    if not dry_run and (silent := nobody_at(config)):
        raise ConfigError(silent)
    from evo_kernel.app import early_start

    if config.judge.at == LOCAL:
        early_start.begin(config.task, config.device)
    if dry_run:
        from evo_kernel.app import dry_run as page

        page.dry_run(config)
        return
    from evo_kernel.app import session

    sys.exit(session.run(config, as_json=as_json, began=began, until_waiting=until_waiting))


@click.command()
@POPULATION
@_for("How much longer, like 90s, 10m, 8h, whatever was spent before.")
@click.option("--device", type=DEVICES, help="Judge on another device; the best kernels are judged there first.")
@_GPUS
@JUDGE
@UNTIL_WAITING
@SET
@with_models
@JSON
def resume(
    population: Path,
    for_s: float | None,
    device: str | None,
    gpus: str | None,
    judge_at: str | None,
    until_waiting: bool,
    overrides: tuple[str, ...],
    models: ModelOptions,
    as_json: bool,
) -> None:
    """Continue the search of POPULATION with the configuration that it was started with.

    Other budgets are totals over all sessions: raise one to search further. A number with a plus allows so much more
    than was spent.

    \b
    evo-kernel resume softmax.db --for 1h
    evo-kernel resume softmax.db --for 1h --set budget.dollars=+2
    """
    began = time.monotonic()
    from evo_kernel.app import early_start

    if judge_at in (None, LOCAL):
        early_start.begin(None, device)
    from evo_kernel.app import session

    named = {"device": device, "gpus": gpus, "judge.at": judge_at}
    code = session.resume(
        population, for_s, overrides, named, models, as_json=as_json, began=began, until_waiting=until_waiting
    )
    sys.exit(code)


@click.command()
@POPULATION
@click.argument("candidate", default="best", metavar="[CANDIDATE]")
@JUDGE_DEVICE
@WAIT
@JSON
def confirm(population: Path, candidate: str, device: str | None, wait_s: float, as_json: bool) -> None:
    """Confirm one CANDIDATE of POPULATION on the hidden cases, and search nothing.

    CANDIDATE is a number, or `best` (if left out): the fastest that no confirmation refuted. It is checked with new
    inputs of every kind and timed beside the first kernel, and beside the champion where it would take its place.
    A candidate that was confirmed or refuted before is not judged again.

    \b
    evo-kernel confirm softmax.db
    evo-kernel confirm softmax.db 7
    evo-kernel export softmax.db --candidate 7 --to best/

    Exit codes: 0 it is confirmed; 1 it is not; 2 a mistake that you can correct; 3 the machine failed; 130 interrupted.
    """
    number = None if candidate == "best" else number_of(candidate, "a number, or `best`")
    from evo_kernel.app import confirming, early_start
    from evo_kernel.app.verdicts import compared_lines, confirmed_lines

    early_start.begin(None, device)
    found = confirming.confirm(population, number, device, wait_s, lambda line: echo(line, err=True))
    evaluation = found.evaluation
    if as_json:
        click.echo(json.dumps(found.as_data()))
    else:
        known = ", as it was found before" if found.known else ""
        echo(f"candidate {found.candidate}, {evaluation.environment.label}{known}:")
        echo("\n".join([*confirmed_lines(evaluation), *compared_lines(evaluation)]))
        if evaluation.passed:
            click.echo(f"next: evo-kernel export {population} --candidate {found.candidate} --to DIR")
    sys.exit(0 if evaluation.passed else 3 if evaluation.status == "infra_error" else 1)
