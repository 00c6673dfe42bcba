"""`run` and `resume`: the search itself."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from evo_kernel.config import Config, config_from, load_config, with_overrides
from evo_kernel.errors import ConfigError

if TYPE_CHECKING:
    from evo_kernel.app.recordings import Traffic

_GPUS = click.option("--gpus", metavar="N|all", help="GPUs of this machine that judge side by side; 1 if left out.")
_FILE = click.Path(path_type=Path, dir_okay=False)
_MODELS = (
    click.option(
        "--model", "models", multiple=True, metavar="PROVIDER/NAME",
        help="A language model, as litellm spells it; repeatable. `scripted` needs no network.",
    ),
    click.option("--base-url", metavar="URL", help="Ask the models at this server; it speaks chat completions."),
    click.option("--api-key-env", metavar="NAME", help="The environment variable that holds the server's key."),
    click.option("--record", type=_FILE, metavar="FILE", help="Append all that is said to models, and their answers."),
    click.option("--replay", type=_FILE, metavar="FILE", help="Answer from such a recording; nothing is asked."),
)  # fmt: skip


def _with_models(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_MODELS):
        command = option(command)
    return command


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
    "--first",
    type=click.Choice(["auto", "compiled", "both"]),
    help="compiled: start from torch.compile's kernels; both: from them too.",
)
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), help="cuda measures, cpu models, auto takes what is there."
)
@_GPUS
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one configuration key; repeatable."
)
@click.option("--unconfined", is_flag=True, help="Go on where candidate code cannot be confined at all.")
@_with_models
@click.option("--dry-run", is_flag=True, help="Show what would be done, prompts too; judge the first kernel; no more.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def run(
    task: str | None,
    population: Path | None,
    config_file: Path | None,
    start_from: Path | None,
    first: str | None,
    device: str | None,
    gpus: str | None,
    overrides: tuple[str, ...],
    unconfined: bool,
    models: tuple[str, ...],
    base_url: str | None,
    api_key_env: str | None,
    record: Path | None,
    replay: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Search for a faster kernel for TASK: a built-in name (`evo-kernel tasks list`) or the path of a task file.

    The default configuration is configs/quickstart.toml: offline operators, three minutes. With a --model it is
    configs/agents.toml: an hour, five dollars, the offline operators mixed in. The population file keeps everything;
    `evo-kernel resume` goes on with it.

    \b
    evo-kernel run softmax
    evo-kernel run my_op.py --set budget.hours=1 --set operators.policy=uniform
    evo-kernel run my_op.py --population longer.db --start-from my_op.db
    evo-kernel run my_op.py --model anthropic/NAME --set budget.dollars=2
    evo-kernel run my_op.py --model NAME --base-url http://localhost:8000/v1

    Exit codes: 0 a kernel passed; 1 none did; 2 a mistake that you can mend; 3 the machine failed; 130 interrupted
    (what was found is kept, and `resume` goes on).
    """
    extra = [f"judge.unconfined={str(unconfined).lower()}"] if unconfined else []
    shipped = Path("configs/agents.toml" if models or replay else "configs/quickstart.toml")
    late = [override for override in overrides if models and override.startswith("models.")]  # on top of --model
    config = load_config(config_file or shipped, [*(o for o in overrides if o not in late), *extra])
    config = with_overrides(_asking(config, models, base_url, api_key_env), late)
    traffic = _traffic(record, replay)
    named = {
        "task": task,
        "population": population,
        "start_from": start_from,
        "first": first,
        "device": device,
        "gpus": gpus,
    }
    config = config.model_copy(update={key: value for key, value in named.items() if value is not None})
    began = time.monotonic()
    from evo_kernel.app import early_start

    early_start.begin(config.task, config.device)
    from evo_kernel.app import compose

    loaded = compose.task_of(config)
    path = compose.population_path(config, loaded)
    config = compose.lasting(config).model_copy(update={"task": compose.lasting_name(loaded), "population": path})
    if dry_run:
        from evo_kernel.app.dry_run import dry_run as show_what_would_be_done

        show_what_would_be_done(config, loaded, path, traffic)
        return
    if path.exists():
        raise ConfigError(
            f"{path} exists already: go on with `evo-kernel resume {path}`, or name another --population."
        )
    _search(config, loaded, path, create=True, as_json=as_json, traffic=traffic, began=began)


@click.command()
@click.argument("population", type=click.Path(path_type=Path))
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Another device; its elites are measured first."
)
@_GPUS
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one configuration key; repeatable."
)
@_with_models
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def resume(
    population: Path,
    device: str | None,
    gpus: str | None,
    overrides: tuple[str, ...],
    models: tuple[str, ...],
    base_url: str | None,
    api_key_env: str | None,
    record: Path | None,
    replay: Path | None,
    as_json: bool,
) -> None:
    """Go on with POPULATION under the configuration that it was started with.

    What was spent counts: raise a budget to search on.

    \b
    evo-kernel resume softmax.db --set budget.hours=1
    """
    began = time.monotonic()
    from evo_kernel.app import early_start

    early_start.begin(None, device)
    from evo_kernel.app import compose
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        stored = dict(reader.sessions()[-1].config)
    stored = without_commands(stored, overrides)
    config = compose.resumed_config(population, stored)
    named = {key: value for key, value in {"device": device, "gpus": gpus}.items() if value is not None}
    config = _asking(compose.config_with(config, named), models, base_url, api_key_env)
    config, traffic = with_overrides(config, overrides), _traffic(record, replay)
    _search(config, compose.task_of(config), population, create=False, as_json=as_json, traffic=traffic, began=began)


def without_commands(stored: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A stored configuration without the shell commands in it: files are handed on, and nobody expects one there."""
    left = dict(stored)
    if "external" in left:
        left["external"] = dict(left["external"])
    for section, key, name in (
        (left, "on_event", "on_event"),
        (left.get("external", {}), "command", "external.command"),
    ):
        command = section.pop(key, None)
        if command and not any(override.startswith(f"{name}=") for override in overrides):
            click.echo(f"{name} is not taken from the file; to run it again: --set {name}={command!r}", err=True)
    return left


def _asking(config: Config, models: tuple[str, ...], base_url: str | None, api_key_env: str | None) -> Config:
    """The configuration with these models in place of its own. Raises ConfigError."""
    if not models:
        if base_url or api_key_env:
            raise ConfigError("--base-url and --api-key-env say where a --model is: name one, or use [models.main].")
        return config
    where = {"base_url": base_url, "api_key_env": api_key_env}
    configured = {one.name: one.model_dump() for one in config.models.values()}
    keys = ["main", *models[1:]]  # so that one model is [models.main], as in a configuration
    named = {
        key: {**configured.get(name, {"name": name}), **{key: value for key, value in where.items() if value}}
        for key, name in zip(keys, models, strict=True)
    }
    return config_from({**config.model_dump(mode="json"), "models": named}, "--model")


def _traffic(record: Path | None, replay: Path | None) -> Traffic:
    from evo_kernel.app.recordings import Traffic

    if record is not None and record == replay:
        raise ConfigError(f"{record} cannot be recorded to while it is replayed: name another file to --record.")
    if replay is not None and not replay.is_file():
        raise ConfigError(f"there is no recording {replay}; make one with --record.")
    return Traffic(record, replay)


def _search(
    config: Config, task: Any, path: Path, *, create: bool, as_json: bool, traffic: Traffic, began: float
) -> None:
    """`began`: when the command did, on the monotonic clock: what was asked for is its time, imports included."""
    from evo_kernel.app import compose, notifications, operator_factory, summary
    from evo_kernel.app.console import open_console
    from evo_kernel.observe.live import LiveProgress

    operator_factory.check(config, traffic)  # a mistake is told of before there is a population that would keep it
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
        ledger = compose.ledger_of(config, parts.population, traffic, began)
        best, state = parts.population.best(), parts.judge.stages.state
        with (
            LiveProgress(console, environment, ledger.left, best, state) as progress,
            notifications.told(config, task.name, path, progress) as (observer, tell_end),
        ):
            ended = compose.search(config, parts, observer, ledger, traffic)
            tell_end(ended)
        cut_off = max(progress.in_flight, len(parts.population.pending()))
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
