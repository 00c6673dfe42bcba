"""`train collect`: grow a tree of transitions."""

from __future__ import annotations

import click

from evo_kernel.errors import UserError


@click.command()
def collect() -> None:
    """Judge what the offline rewriter can do with the built-in tasks."""
    raise UserError("under construction")
