"""MkDocs hook: reference pages, written by the code that they describe. None of them is stored."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel

from evo_kernel.cli.main import cli
from evo_kernel.config import keys
from evo_kernel.tasks.loading import builtin_names, load
from operators.macro import catalogue
from populations import schema_reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_COMMANDS = """# Commands
This is what `--help` says of each command. Exit codes: 0 done; 1 a kernel did not pass, or nothing was found; 2 a
mistake that you can correct; 3 the machine failed; 130 interrupted.
"""
_CONFIGURATION = """# Configuration keys
How to set them: [Configure a run](../guides/configuration.md).

| key | default | what it is for |
| --- | --- | --- |
"""
_STRATEGIES = """# Strategies
What they are and how to add one: [Strategies and policies](../guides/strategies.md). "Offline": the rewriter can carry
it out without a language model.

"""
_TASKS = """# Built-in tasks
`evo-kernel tasks show NAME` prints the cases, rules and first kernel of one. Files: `evo_kernel/tasks/builtin/`.

| name | computes |
| --- | --- |
"""


def commands() -> str:
    """Every command with its options."""
    return _COMMANDS + _linked("".join(_section(path, command) for path, command in _walk(cli, ())))


def configuration() -> str:
    """Every key with its default."""
    rows = (f"| `{name}` | {_default(default)} | {_cell(description)} |\n" for name, description, default in keys())
    return _CONFIGURATION + _linked("".join(rows))


def strategies() -> str:
    """The catalogue of strategies."""
    return f"{_STRATEGIES}{catalogue.table()}\n"


def tasks() -> str:
    """The built-in tasks with the first line of what each says it computes."""
    return _TASKS + "".join(
        f"| `{name}` | {_cell((load(name).description.splitlines() or [''])[0])} |\n" for name in builtin_names()
    )


def _walk(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield (*path, name), command
            if isinstance(command, click.Group):
                yield from _walk(command, (*path, name))


def _section(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command)
    name = "evo-kernel " + " ".join(path)
    usage = " ".join(p.make_metavar(context) for p in command.params if isinstance(p, click.Argument))
    more = " COMMAND" if isinstance(command, click.Group) else ""
    # \b marks paragraphs that a terminal must not wrap: here they are blocks of their own
    text = "\n\n".join(_block(part.strip("\n")) for part in inspect.cleandoc(command.help or "").split("\n\n"))
    rows = [
        f"| `{', '.join([*o.opts, *o.secondary_opts])}` | {_cell(_meaning(o, context))} |\n"
        for o in command.params
        if isinstance(o, click.Option) and not o.hidden
    ]
    table = "\n| option | |\n| --- | --- |\n" + "".join(rows) if rows else ""
    return f"\n## {name}\n`{name}{more}{' ' + usage if usage else ''}`\n\n{text}\n{table}"


def _block(paragraph: str) -> str:
    if paragraph.startswith("\b"):
        return "```\n" + paragraph.removeprefix("\b").strip("\n") + "\n```"
    return paragraph


def _meaning(option: click.Option, context: click.Context) -> str:
    said = option.help or ""
    if isinstance(option.type, click.Choice):
        said += f" ({', '.join(map(str, option.type.choices))})"
    default = option.default if isinstance(option.default, (str, int, float)) and not option.is_flag else None
    if default not in (None, "") and f"{default}" not in said:
        said += f" [default: {default}]"
    return said.strip()


def _default(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, BaseModel):
        return "a section"
    plain = list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value
    return f"`{json.dumps(plain)}`" if repr(plain) != "PydanticUndefined" else "needed"


def _linked(text: str) -> str:
    """`--help` names pages by their paths in the repository."""
    return re.sub(r"docs/([\w/-]+\.md)", r"[\1](../\1)", text)


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/configuration.md": configuration,
    "reference/schema.md": schema_reference.current,
    "reference/strategies.md": strategies,
    "reference/tasks.md": tasks,
}
"""Path below docs/ → what writes the page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to the site."""
    from mkdocs.structure.files import File

    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files
