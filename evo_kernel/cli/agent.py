"""`mcp`, `ask` and `tell`: how somebody outside the loop makes kernels for a population."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path

import click

from evo_kernel.cli import options
from evo_kernel.errors import UserError
from evo_kernel.types import escaped

LONGEST_H = 1e6
"""Of a ticket: a hundred years."""


@click.command()
@options.POPULATION
@click.option("--folder", type=options.PATH, help="Where attempts have their files; POPULATION.mcp if left out.")
@click.option(
    "--evaluations", default=40, show_default=True, type=click.IntRange(1), help="Evaluations in one attempt, at most."
)
@click.option("--submits", default=12, show_default=True, type=click.IntRange(1),
              help="Submissions in one attempt, at most.")  # fmt: skip
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
    serve(population, place, allowed, device, wait_s, lambda line: options.echo(line, err=True))


@click.command()
@options.POPULATION
@click.option(
    "--as",
    "holder",
    type=options.Name(),
    default="external",
    show_default=True,
    help="Your name, kept with the ticket.",
)
@click.option(
    "--expires",
    "expires_h",
    type=options.Number(0, LONGEST_H, min_open=True),
    metavar="HOURS",
    help="The ticket expires after so long; without it, when it is told or given up.",
)
@click.option("--open", "list_open", is_flag=True, help="List the open tickets instead of making a new one.")
@click.option(
    "--attempt", type=options.NUMBER, help="Print the brief of this ticket again instead of making a new one."
)
@click.option("--parent", type=options.NUMBER, help="The candidate to start from; the population chooses by default.")
@options.WAIT
def ask(
    population: Path,
    holder: str,
    expires_h: float | None,
    list_open: bool,
    attempt: int | None,
    parent: int | None,
    wait_s: float,
) -> None:
    """Ask POPULATION for an attempt: a brief as one JSON object on standard output.

    The brief holds the ticket (`attempt`), the task, a parent's source with its evidence, inspirations, what was tried
    on this parent already, and the strategies that seem to apply. Write a better kernel, in any way you like, and hand
    it in with `evo-kernel tell`. A ticket stays valid when this command ends or the machine restarts.

    \b
    evo-kernel run softmax --set budget.evaluations=0   # makes a population: the first kernel, judged
    evo-kernel ask softmax.db > brief.json
    jq -r .parent.source brief.json > mine.py           # edit it
    evo-kernel tell softmax.db --attempt "$(jq .attempt brief.json)" mine.py
    """
    from evo_kernel.app import external_session
    from evo_kernel.app.external_session import brief_data
    from populations.reading import PopulationReader

    if parent is not None and (list_open or attempt is not None):
        raise UserError("--parent is for a new attempt: leave out --open and --attempt")
    if list_open:
        with PopulationReader(population) as reader:
            click.echo(json.dumps([one.as_data(time.time()) for one in reader.tickets()]))
        return
    expires_at = time.time() + expires_h * 3600 if expires_h is not None else None
    brief, expires_at = external_session.ask(population, holder, expires_at, attempt, parent, wait_s)
    told_by = f"evo-kernel tell {population} --attempt {brief.attempt} FILE"
    click.echo(
        json.dumps(brief_data(brief, external_session.offered(brief)) | {"expires_at": expires_at, "tell": told_by}),
    )


@click.command()
@options.POPULATION
@click.argument("file", required=False)
@click.option("--attempt", required=True, type=options.NUMBER, help="The `attempt` that `ask` printed.")
@click.option(
    "--fail",
    "reason",
    type=options.Name(),
    metavar="REASON",
    help="Give the attempt up for this REASON; needs no FILE.",
)
@click.option(
    "--strategy", type=options.Name(), metavar="NAME", help="What you did: a strategy of the brief, or your own word."
)
@click.option(
    "--as", "operator", type=options.Name(), default="external", show_default=True, help="Your name in the lineage."
)
@options.JUDGE_DEVICE
@options.UNTIL_WAITING
@options.WAIT
@options.JSON
def tell(
    population: Path,
    file: str | None,
    attempt: int,
    reason: str | None,
    strategy: str | None,
    operator: str,
    device: str | None,
    until_waiting: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Hand in the kernel in FILE (`-`: standard input) for an attempt of `evo-kernel ask`, and get its verdict.

    FILE is a Python module with `run(*inputs)`. It is stored as a candidate; then the run's judge records, checks,
    tunes and scores it. The same file again prints the same verdict; if judging was cut off, it is judged now. A
    --strategy gets credit if the compiled kernel shows that it was applied. With judges elsewhere, --until-waiting ends
    once the kernel waits for its verdict, and says what to carry; the same command again gets the verdict.

    \b
    evo-kernel tell softmax.db --attempt 4 mine.py --strategy one-pass-row
    generate | evo-kernel tell softmax.db --attempt 4 - --json
    evo-kernel tell softmax.db --attempt 4 --fail "no idea"

    Exit codes: 0 it passed; 1 it did not; 2 a mistake that you can correct; 3 the machine failed (tell it again); 130
    interrupted, by Ctrl-C or SIGTERM (tell it again).
    """
    from evo_kernel.app import external_session
    from evo_kernel.app.verdicts import show_evaluation
    from evo_kernel.cli.options import read_source

    if (file is None) == (reason is None):
        raise UserError("give either a FILE (`-` for standard input) to tell, or --fail REASON to give the attempt up")
    if file is None:
        assert reason is not None
        external_session.give_up(population, attempt, operator, reason, wait_s)
        given_up = {"attempt": attempt, "given_up": reason}
        click.echo(json.dumps(given_up) if as_json else f"attempt {attempt} is given up: {escaped(reason)}")
        return
    source = read_source(Path(file))
    try:
        told = external_session.tell(
            population, attempt, source, operator, strategy, device, wait_s, lambda line: options.echo(line, err=True),
            until_waiting=until_waiting,
        )  # fmt: skip
    except KeyboardInterrupt:
        click.echo(f"interrupted: attempt {attempt} is kept, with what was told; tell {file} again", err=True)
        sys.exit(130)
    if not isinstance(told, external_session.TellResult):
        again = f"evo-kernel tell {population} --attempt {attempt} {file} --until-waiting"
        lines = json.dumps({"attempt": attempt, "waiting": told.as_data()}) if as_json else "\n".join(told.lines(again))
        click.echo(lines)
        return
    if as_json:
        click.echo(json.dumps(told.as_data()))
    else:
        show_evaluation(told.evaluation)
        gain = f": {told.gain_text}" if told.gain_text else ""
        parent = told.recorded.brief.parent.candidate
        click.echo(f"candidate {told.recorded.candidate}, child of candidate {parent}{gain}")
    if told.evaluation.status == "infra_error":
        click.echo(f"it is kept and pending: tell it again, or `evo-kernel resume {population}`", err=True)
        sys.exit(3)
    sys.exit(0 if told.evaluation.passed else 1)
