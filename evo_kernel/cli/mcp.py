"""`mcp`: the workbench for any coding agent that speaks the Model Context Protocol."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from evo_kernel.cli import options
from evo_kernel.errors import UserError


@click.command()
@options.POPULATION
@click.option("--folder", type=options.PATH, help="Where attempts have their files; POPULATION.mcp if left out.")
@options.EVALUATIONS
@options.SUBMITS
@options.JUDGE_DEVICE
@options.WAIT
def mcp(
    population: Path, folder: Path | None, evaluations: int, submits: int, device: str | None, wait_s: float
) -> None:
    """Serve the workbench of POPULATION to coding agents over the Model Context Protocol.

    The agent gets these tools: brief, files, probe, evaluate, profile, submit, lineage, knowledge, notes. A submission
    passes the commit gate, or comes back with the reason. A commit becomes a candidate, and the next attempt begins. An
    attempt outlives the server: the next server continues it. While it serves, no other process can write POPULATION.

    Install it with: pip install 'evo-kernel[mcp]'. Agents start the server themselves; configure yours like this:

    \b
    {"mcpServers": {"evo-kernel": {"command": "evo-kernel", "args": ["mcp", "/path/softmax.db"]}}}

    It stops at the end of standard input, and at SIGTERM or SIGINT. What was recorded stays.
    """
    if importlib.util.find_spec("mcp") is None:
        raise UserError("`evo-kernel mcp` needs the Model Context Protocol's SDK: pip install 'evo-kernel[mcp]'")
    from evo_kernel.app.mcp_server import serve
    from operators.workbench.judge_tools import Allowed

    allowed = Allowed(evaluations=evaluations, submits=submits)
    place = folder or population.with_name(population.name + ".mcp")
    serve(population, place, allowed, device, wait_s, lambda line: click.echo(line, err=True))
