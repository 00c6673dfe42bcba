"""`mcp`: the workbench for any coding agent that speaks the Model Context Protocol."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from evo_kernel.app.loopback import listen
from evo_kernel.cli import options
from evo_kernel.errors import UserError


@click.command()
@options.POPULATION
@click.option(
    "--http",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve streamable HTTP at http://127.0.0.1:PORT/mcp instead of stdio; 0 takes a free port.",
)
@click.option("--folder", type=options.PATH, help="Where attempts have their files; POPULATION.mcp if left out.")
@options.EVALUATIONS
@options.SUBMITS
@options.JUDGE_DEVICE
@options.WAIT
def mcp(
    population: Path,
    port: int | None,
    folder: Path | None,
    evaluations: int,
    submits: int,
    device: str | None,
    wait_s: float,
) -> None:
    """Serve the workbench of POPULATION to coding agents over the Model Context Protocol.

    An agent gets tools: brief, files, probe, evaluate, profile, submit, lineage, knowledge, notes. What it submits
    passes the commit gate or not; a commit becomes a candidate, and the next attempt begins. The attempt at hand
    outlives the server: the next one goes on with it. While it serves, nobody else writes the population.

    Needs the extra: pip install 'evo-kernel[mcp]'. Most agents start such a server themselves (stdio):

    \b
    {"mcpServers": {"evo-kernel": {"command": "evo-kernel", "args": ["mcp", "/path/softmax.db"]}}}

    Or serve HTTP, on loopback only. Every request must bear a token: EVO_KERNEL_MCP_TOKEN if it is set, else one that
    is made anew and written to POPULATION.mcp-token, readable by you alone, for as long as the server runs:

    \b
    evo-kernel mcp softmax.db --http 8765

    SIGTERM, SIGINT, and the end of standard input stop it; nothing that was told is lost.
    """
    if importlib.util.find_spec("mcp") is None:
        raise UserError("`evo-kernel mcp` needs the Model Context Protocol's SDK: pip install 'evo-kernel[mcp]'")
    from evo_kernel.app.mcp_server import serve
    from operators.workbench.judge_tools import Allowed

    listening = listen(port) if port is not None else None
    allowed = Allowed(evaluations=evaluations, submits=submits)
    place = folder or population.with_name(population.name + ".mcp")
    serve(population, place, allowed, device, wait_s, listening, lambda line: click.echo(line, err=True))
