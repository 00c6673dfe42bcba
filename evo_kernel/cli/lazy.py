"""A group of commands that are imported when they are called, so that help and status start fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """`modules`: name -> (module, attribute) of the command; `summaries`: name -> its line in the help."""

    def __init__(
        self, *given: Any, modules: Mapping[str, tuple[str, str]], summaries: Mapping[str, str], **named: Any
    ) -> None:
        super().__init__(*given, **named)
        self._modules, self._summaries = modules, summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self._modules:
            return None
        module, name = self._modules[cmd_name]
        return getattr(importlib.import_module(module), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from their summaries, so that help imports none of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))
