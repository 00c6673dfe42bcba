"""Options and arguments that several commands share, and the kernel that a file holds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from evo_kernel.deadline import LONGEST_S, seconds_of
from evo_kernel.errors import UserError
from evo_kernel.judge_place import judge_place
from evo_kernel.tasks.packaged import names_function, packaged_source
from evo_kernel.types import Source, escaped
from operators.learning import TREE


def echo(text: str, err: bool = False) -> None:
    """Print what may hold text of others: nothing in it commands a terminal."""
    click.echo(escaped(text), err=err)


class Duration(click.ParamType):
    """A time such as 90s or 1h30m; the command gets it in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else seconds_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Number(click.FloatRange):
    """A number in a range, in which NaN is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is no number", param, ctx)
        return found


class Name(click.ParamType):
    """A text that is kept, so it must be one that UTF-8 can write."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail("it is no valid UTF-8", param, ctx)
        return value


class JudgePlace(click.ParamType):
    """See judge_place; the command gets it as the configuration keeps it."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return judge_place(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
DEVICES = click.Choice(["auto", "cpu", "cuda"])
NUMBER = click.IntRange(1, 2**63 - 1)  # of a row: SQLite takes no more


def number_of(candidate: str, wanted: str) -> int:
    """A candidate's number, of an argument that may also be a name. Raises UserError."""
    if not candidate.isdecimal() or not 0 < int(candidate[:20]) < 2**63:
        raise UserError(f"{candidate[:40]!r} is not a candidate: use {wanted}")
    return int(candidate)


POPULATION = click.argument("population", type=PATH)
KERNEL_FILE = click.argument("file", type=PATH)
TASK = click.option("--task", "task_name", required=True, help="A built-in task, or the path of a task file.")
DEVICE = click.option(
    "--device",
    type=DEVICES,
    default="auto",
    show_default=True,
    help="Where kernels are judged: cuda measures times, cpu models them, auto takes a GPU if there is one.",
)
JUDGE = click.option(
    "--judge",
    "judge_at",
    type=JudgePlace(),
    metavar="local|spool:DIR|ray[:ADDRESS]",
    help="Who judges: this process; the servers of a folder, started with `evo-kernel judge DIR`; or the hosts of a "
    "Ray cluster, auto or HOST:PORT.",
)
JUDGE_DEVICE = click.option("--device", type=DEVICES, help="Judge on another device than the run did.")
UNTIL_WAITING = click.option(
    "--until-waiting",
    is_flag=True,
    help="With judges elsewhere: end, with exit code 0, once all that is under way waits for verdicts.",
)
WAIT = click.option(
    "--wait",
    "wait_s",
    default=60.0,
    show_default=True,
    type=Number(0),
    help="Seconds to wait while another process writes the population.",
)
SECONDS = Number(0, LONGEST_S, min_open=True)
DEADLINE = click.option(
    "--deadline",
    "deadline_s",
    type=SECONDS,
    default=60.0,
    show_default=True,
    help="Seconds for one recording, check or timing.",
)
UNCONFINED = click.option("--unconfined", is_flag=True, help="Judge even where candidate code cannot be sandboxed.")
SET = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one configuration key; repeatable."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
FIRST = click.option(
    "--first",
    "wanted",
    type=click.Choice(["auto", "template", "gluon", "compiled"]),
    default="auto",
    show_default=True,
    help="The first kernel. auto: the task's seed, else a lowered one; template: one for products and convolutions; "
    "gluon: the same with warp groups, for Hopper; compiled: torch.compile's kernels.",
)
TREE_FILE = click.option(
    "--tree",
    "tree_file",
    type=PATH,
    default=TREE,
    show_default="the one that comes with evo-kernel",
    help="A tree of transitions, from `train collect`.",
)
_MODELS = (
    click.option(
        "--model", "models", multiple=True, metavar="PROVIDER/NAME",
        help="A language model, as litellm spells it; repeatable. `scripted` needs no network.",
    ),
    click.option("--base-url", metavar="URL", help="The server to ask; it must speak the chat-completions protocol."),
    click.option("--api-key-env", metavar="NAME", help="The environment variable that holds the server's key."),
)  # fmt: skip


_SETTINGS = (
    click.option(
        "--knobs", multiple=True, metavar="NAME=N,...",
        help="A setting of the knobs, tried on each FILE instead of its own; repeatable.",
    ),
    click.option(
        "--settings", "settings_file", type=FILE, metavar="FILE",
        help='Settings to try on each FILE: a JSON list of objects, or one object a line, such as {"BLOCK": 128, '
        '"my_kernel.config": 0}; {} is the file as it stands.',
    ),
)  # fmt: skip


LONGEST = 4 * 2**20
"""Characters: a module that is longer was written by no mind."""


def read_source(file: Path) -> Source:
    """The kernel in a file (`-`: standard input), or of a package (`package.module:function`).

    Raises UserError with a plain sentence.
    """
    if names_function(str(file)) and not file.exists():
        return packaged_source(str(file))
    name = "standard input" if str(file) == "-" else str(file)
    try:
        with click.open_file(str(file), encoding="utf-8-sig") as stream:
            text = stream.read(LONGEST + 1)
    except OSError as error:
        raise UserError(f"cannot read {name}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {name}: it is not UTF-8 text, so it is no Python module") from error
    if len(text) > LONGEST:
        raise UserError(f"{name} is longer than {LONGEST} characters: give one Python module with `run(*inputs)`")
    if not text.strip():
        raise UserError(f"{name} is empty: give one Python module with `run(*inputs)`")
    return Source(text)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The options of knob settings; the command gets them as `knobs` and `settings_file`."""
    return functools.reduce(lambda made, option: option(made), reversed(_SETTINGS), command)


def with_models(command: Callable[..., None]) -> Callable[..., None]:
    """The options of language models; the command gets them as `models: ModelOptions`."""

    @functools.wraps(command)
    def bundled(
        *,
        models: tuple[str, ...],
        base_url: str | None,
        api_key_env: str | None,
        **others: object,
    ) -> None:
        from evo_kernel.app.run_config import ModelOptions  # pydantic: slow, and few commands need it

        command(models=ModelOptions(models, base_url, api_key_env), **others)

    return functools.reduce(lambda made, option: option(made), reversed(_MODELS), bundled)
