"""docs/commands.md and docs/configuration.md, written from what commands and keys say of themselves.

python -m evo_kernel.cli.reference_docs docs
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from evo_kernel.cli.main import cli
from evo_kernel.config import keys

_COMMANDS = """# Commands
Written by `python -m evo_kernel.cli.reference_docs docs` from what `--help` says; a test compares. Exit codes: 0 done;
1 a kernel did not pass, or nothing was found; 2 a mistake that you can mend; 3 the machine failed; 130 interrupted.
"""
_CONFIGURATION = """# Configuration
Written by `python -m evo_kernel.cli.reference_docs docs`; a test compares. A run takes a TOML file
(`--config FILE`; shipped ones go by name: quickstart.toml, h200.toml, agents.toml, overnight.toml) and then what
`--set key=value` says. Keys that are left out have their defaults; an unknown key is an error that names the nearest
one. A population keeps what it was run with.

| key | default | what it is for |
| --- | --- | --- |
"""


def commands() -> str:
    """The text of docs/commands.md."""
    return _COMMANDS + "".join(_section(path, command) for path, command in _walk(cli, ()))


def configuration() -> str:
    """The text of docs/configuration.md."""
    return _CONFIGURATION + "".join(
        f"| `{name}` | {_default(default)} | {_cell(description)} |\n" for name, description, default in keys()
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


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def main() -> None:
    """Write both files into the folder that is named."""
    folder = Path(sys.argv[1])
    (folder / "commands.md").write_text(commands(), encoding="utf-8")
    (folder / "configuration.md").write_text(configuration(), encoding="utf-8")


if __name__ == "__main__":
    main()
