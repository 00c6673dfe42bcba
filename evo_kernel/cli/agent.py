"""`agent`: any command-line coding agent as the operator of a search."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import click

from evo_kernel.cli import options


@click.command()
@options.POPULATION
@click.option("--command", required=True, help="What /bin/sh runs in the workspace of each attempt.")
@click.option("--attempts", default=1, show_default=True, type=click.IntRange(1), help="How many attempts to make.")
@click.option("--minutes", default=30.0, show_default=True, type=click.FloatRange(0, min_open=True),
              help="Time limit of one attempt; then the agent and all that it started are ended.")  # fmt: skip
@options.EVALUATIONS
@options.SUBMITS
@click.option("--width", default=1, show_default=True, type=click.IntRange(1), help="How many agents work in parallel.")
@click.option("--pass-env", multiple=True, metavar="NAME", help="Pass this variable to the agent; repeatable.")
@click.option("--as", "name", default="external", show_default=True, help="Name of the agent in the lineage.")
@click.option("--folder", type=options.PATH, help="Folder for workspaces and logs; POPULATION.agents if left out.")
@click.option("--keep", is_flag=True, help="Keep the workspaces of finished attempts.")
@options.JUDGE_DEVICE
@options.WAIT
@options.JSON
def agent(
    population: Path,
    command: str,
    attempts: int,
    wait_s: float,
    device: str | None,
    as_json: bool,
    width: int,
    **external: Any,
) -> None:
    """Let a coding agent work on POPULATION: COMMAND runs once an attempt, in a workspace made for it.

    The workspace holds a README.md that is all the agent needs, kernel.py (the kernel to beat), the task, and
    .mcp.json, which names an MCP server with the tools: probe, evaluate, profile, submit and others. Its URL is also in
    the variable EVO_KERNEL_MCP. A submission passes the commit gate, or comes back with the reason; a commit becomes a
    candidate and ends the attempt. The agent gets a clean environment and its own home folder. Use --pass-env for what
    else it needs: a key, or HOME if its login is there. Its output is kept in POPULATION.agents/attempt-N.log.

    Install what it needs with: pip install 'evo-kernel[mcp]'.

    \b
    evo-kernel agent softmax.db --command 'my-agent --mcp-config .mcp.json "$(cat README.md)"' --pass-env MY_AGENT_KEY

    Exit codes: 0 an agent committed a kernel; 1 none did; 2, 3 and 130 as of `run`. The first Ctrl-C or SIGTERM lets
    running attempts finish (within --minutes), the second ends the agents at once.
    """
    from evo_kernel.app import compose, external_session, operator_factory, summary
    from evo_kernel.app.console import open_console
    from evo_kernel.app.session import leave_at_once
    from evo_kernel.budget import Budget, Ledger
    from evo_kernel.engine import EngineSettings
    from evo_kernel.observe.live import LiveProgress

    changes = {"command": command, **{key: value for key, value in external.items() if value is not None}}
    stored = external_session.last_config(population, device)  # what a later `resume` goes on with
    changed = {
        "external": stored.external.model_copy(update=changes),
        "operators": stored.operators.model_copy(update={"use": ("external",)}),
        "models": {},  # none is needed, nor its key
    }
    config = stored.model_copy(update=changed)
    operator_factory.check(config)  # what is wrong with it is said before a judge is started
    console = open_console(stderr=as_json)
    with external_session.judged(population, stored, wait_s, lambda line: click.echo(line, err=True)) as session:
        parts = session.parts
        console.print(f"{parts.task.name} · {population} · {parts.judge.environment.label}", highlight=False)
        ledger = Ledger(Budget())  # the run's limits are for runs; what is spent here counts towards them later
        with LiveProgress(
            console, parts.judge.environment, ledger.left, parts.population.best(), parts.judge.stages.state
        ) as progress:
            settings = EngineSettings(width=width, attempts=attempts, interrupt_s=math.inf)
            ended = compose.search(config, parts, progress, ledger, settings=settings)
        if as_json:
            told = {"made": ended.attempts, "failures": dict(ended.failures)}
            click.echo(json.dumps(summary.as_data(parts, ended, population) | told))
        else:
            summary.show(console, parts, ended, population, ended.wall_s, "", 0)
    code = _exit_code(ended)
    if progress.in_flight:
        leave_at_once(code)  # the agents' supervisors end their agents when we are gone
    sys.exit(code)


def _exit_code(ended: Any) -> int:
    """As of `run`, but 0 only where an agent has committed something: a good kernel of before says nothing."""
    from evo_kernel.app import summary
    from evo_kernel.types import Status

    code = summary.exit_code(ended)
    return 1 if code == 0 and not ended.statuses.get(Status.PASSED) else code
