"""A session of a search: a new run, or a resumed one, from its configuration to its summary and exit code."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from evo_kernel.app import compose, operator_factory, summary
from evo_kernel.app.preflight import nobody_at
from evo_kernel.app.run_config import ModelOptions, with_additions, with_duration
from evo_kernel.budget import Spent
from evo_kernel.champions import GALLERY
from evo_kernel.champions.matching import matching
from evo_kernel.config import Config, with_overrides
from evo_kernel.errors import ConfigError
from evo_kernel.judge_place import LOCAL
from evo_kernel.observe.live import LiveProgress, open_console, say
from evo_kernel.processes import CutOff
from evo_kernel.tasks.probe import probe
from evo_kernel.tasks.task import Task
from evo_kernel.types import escaped
from operators.micro.coder import RewriteCoder
from populations.reading import PopulationReader


def run(config: Config, *, as_json: bool, began: float, until_waiting: bool = False) -> int:
    """A new population, searched; its exit code. Raises UserError.

    `began`: when the command did, on the monotonic clock: what was asked for is its time, imports included.
    `until_waiting`: see `compose.search`.
    """
    return _search(*new_run(config), create=True, as_json=as_json, began=began, until_waiting=until_waiting)


def new_run(config: Config) -> tuple[Config, Task, Path]:
    """What a run is of: the configuration as it is stored, the task, and the new file. Raises UserError."""
    task = compose.task_of(config)
    path = compose.population_path(config, task)
    config = compose.lasting(config).model_copy(update={"task": task.spec, "population": path})
    if path.exists():
        raise ConfigError(
            f"{path} exists already: go on with `evo-kernel resume {path}`, or name another --population."
        )
    return config, task, path


def resume(
    path: Path,
    for_s: float | None,
    overrides: Sequence[str],
    named: dict[str, Any],
    models: ModelOptions,
    *,
    as_json: bool,
    began: float,
    until_waiting: bool = False,
) -> int:
    """A population searched on; the exit code. `for_s`: seconds that are added to what was spent. `named`: keys that
    options set, where they are not None."""
    with PopulationReader(path) as reader:
        stored, status = dict(reader.sessions()[-1].config), reader.status()
    evaluations = sum(status.evaluations.values())
    spent = Spent(evaluations, status.wall_s / 3600, status.dollars, status.tokens, status.gpu_s)
    overrides = with_additions(overrides, spent)
    config = compose.resumed_config(path, stored)
    options = [f"{key}={value}" for key, value in named.items() if value is not None]
    config = with_overrides(models.put_into(config), [*options, *overrides])
    set_keys = {override.partition("=")[0].strip() for override in overrides}
    if config.models and not (models.base_url or models.api_key_env):
        from evo_kernel.app.models import strange_place  # only here: most searches have no model

        if strange := strange_place(config, set_keys):
            raise ConfigError(f"{path} may come from anybody, and by it {strange}")
    config = with_duration(config, for_s / 3600 if for_s else None, overrides, spent.hours)
    task = compose.task_of(config)
    return _search(config, task, path, create=False, as_json=as_json, began=began, until_waiting=until_waiting)


def _search(
    config: Config, task: Task, path: Path, *, create: bool, as_json: bool, began: float, until_waiting: bool
) -> int:
    operator_factory.check(config)  # a mistake is told of before there is a population that would keep it
    if until_waiting:
        summary.check_until_waiting(config)
    if not create and (silent := nobody_at(config)):
        _complain(silent)  # it may answer later
    console = open_console(stderr=as_json)
    notes = [*task.notes, *(finding.sentence for finding in probe(task))] if create else []  # once: same task later
    with compose.prepared(config, task, path, create, wait=not until_waiting) as parts:
        if create:
            coder, card = RewriteCoder(), task.card()
            silent = {name: coder.why_nothing(source, card) for name, source in parts.firsts.items()}
            notes += [f"{name}: {said}" for name, said in silent.items() if said]
            notes += gallery_notes(config, task)
        say(console, *(f"note: {note}" for note in notes), style="yellow")
        environment = parts.judge.environment
        gpus = len(parts.judge.stages.gpus)
        side_by_side = f", {gpus} GPUs side by side" if gpus > 1 else ""
        elsewhere = f", judged at {config.judge.at}" if config.judge.at != LOCAL else ""
        head = f"task {task.name} · {path} · scores are {environment.label}{side_by_side}{elsewhere}"
        say(console, head, summary.scale_line(environment))
        ledger = compose.ledger_of(config, parts.population, began)
        best, state = parts.population.best(), parts.judge.stages.state
        with LiveProgress(console, environment, ledger.left, best, state) as progress:
            ended = compose.search(config, parts, progress, ledger, until_waiting)
        cut_off = max(progress.in_flight, len(parts.population.pending()))
        if as_json:
            click.echo(json.dumps(summary.as_data(parts, ended, path) | {"cut_off": cut_off}))
        else:
            took_s = time.monotonic() - began
            summary.show(console, parts, ended, path, took_s, summary.raised(config, ended), cut_off)
    code = summary.exit_code(ended)
    if progress.in_flight:
        raise CutOff(code)
    return code


def gallery_notes(config: Config, task: Task) -> list[str]:
    """Which champion computes what the task does: that it is planted, or how."""
    match = matching(task)
    if match is None:
        return []
    planted = config.start_from == GALLERY
    return [f"{'starts' if planted else 'add `--start-from gallery` to start'} from the champion {match.text}"]


def _complain(line: str) -> None:
    click.echo(escaped(line), err=True)
