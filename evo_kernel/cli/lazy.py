"""A group of commands that are imported when they are called, so that help and status start fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """`commands_in`: a package, and of each command the module in it and its line in the help.

    A command is called there as it is here, with underscores.
    """

    def __init__(self, *given: Any, commands_in: tuple[str, Mapping[str, tuple[str, str]]], **named: Any) -> None:
        super().__init__(*given, **named)
        self._package, self._listed = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self._listed)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self._listed:
            return None
        module = importlib.import_module(f"{self._package}.{self._listed[cmd_name][0]}")
        return getattr(module, cmd_name.replace("-", "_"))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from their summaries, so that help imports none of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._listed.items()])
