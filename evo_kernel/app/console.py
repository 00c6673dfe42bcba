"""Consoles that never crop: what is piped is read by programs, or by people later, at any width."""

from __future__ import annotations

from rich.console import Console

PIPED_COLUMNS = 10_000  # rich crops and wraps to a width; text that goes to no terminal has none


def open_console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; without one, plain text whose lines are as long as they are."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=PIPED_COLUMNS, color_system=None)
