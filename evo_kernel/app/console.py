"""Terminal output by rich; without a terminal, plain lines that are never cropped or wrapped."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

PIPED_COLUMNS = 10_000  # rich crops and wraps to a width; text that goes to no terminal has none


def open_console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; without one, plain text whose lines are as long as they are."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=PIPED_COLUMNS, color_system=None)


def say(console: Console, *lines: str, style: str = "") -> None:
    """Lines as they are: nothing in them is markup, and none is broken."""
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=True)
