"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

POPULATION = click.argument("population", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
