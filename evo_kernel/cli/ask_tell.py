"""`ask` and `tell`: the loop by hand. A brief as JSON out, a source in, a verdict out."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from evo_kernel.errors import PopulationError, UserError

_FILE = click.argument("population", type=click.Path(path_type=Path))
_WAIT = click.option(
    "--wait",
    "wait_s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds to wait while another process writes the population.",
)
LONGEST = 4 * 2**20
"""Bytes of a source that is told: a module that is longer was written by no mind."""


@click.command()
@_FILE
@click.option("--as", "holder", default="external", show_default=True, help="Who asks: kept with the ticket.")
@click.option(
    "--expires",
    "expires_h",
    type=click.FloatRange(0, min_open=True),
    metavar="HOURS",
    help="The ticket is good for so long; without it, until it is told or given up.",
)
@click.option("--open", "list_open", is_flag=True, help="Hand out nothing: list the tickets that may still be told.")
@click.option("--attempt", type=int, help="Hand out nothing: print the brief of this ticket again.")
@_WAIT
def ask(
    population: Path, holder: str, expires_h: float | None, list_open: bool, attempt: int | None, wait_s: float
) -> None:
    """Ask POPULATION for an attempt: a brief as one JSON object on standard output.

    The brief holds the ticket (`attempt`), the task, a parent's source with its evidence, inspirations, what was tried
    on this parent already, and the strategies that seem to apply. Write a better kernel, in any way you like, and hand
    it in with `evo-kernel tell`. A ticket stays good when this command, a later run or the machine ends.

    \b
    evo-kernel run softmax --set budget.evaluations=0   # makes a population: the first kernel, judged
    evo-kernel ask softmax.db > brief.json
    jq -r .parent.source brief.json > mine.py           # edit it
    evo-kernel tell softmax.db --attempt "$(jq .attempt brief.json)" mine.py
    """
    from evo_kernel.app import external_session
    from evo_kernel.app.brief_data import brief_data
    from populations.reading import PopulationReader

    if list_open:
        with PopulationReader(population) as reader:
            click.echo(json.dumps([one.as_data(time.time()) for one in reader.tickets()]))
        return
    expires_at = time.time() + expires_h * 3600 if expires_h is not None else None
    with external_session.open_as_last(population, wait_s) as opened:
        if attempt is None:
            brief = opened.ask(holder, expires_at)
        else:
            brief = external_session.tickets_brief(opened, attempt)
            expires_at = opened.ticket(attempt)[1].expires_at
    told_by = f"evo-kernel tell {population} --attempt {brief.attempt} FILE"
    click.echo(
        json.dumps(brief_data(brief, external_session.offered(brief)) | {"expires_at": expires_at, "tell": told_by}),
    )


@click.command()
@_FILE
@click.argument("file", required=False)
@click.option("--attempt", required=True, type=int, help="The ticket that `ask` printed.")
@click.option("--fail", "reason", metavar="REASON", help="Give the attempt up instead of telling a FILE.")
@click.option("--strategy", metavar="NAME", help="What was done: a key that the brief offers, or a word of yours.")
@click.option("--as", "operator", default="external", show_default=True, help="Whose kernel it is, in the lineage.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Judge elsewhere than the run did.")
@_WAIT
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def tell(
    population: Path,
    file: str | None,
    attempt: int,
    reason: str | None,
    strategy: str | None,
    operator: str,
    device: str | None,
    wait_s: float,
    as_json: bool,
) -> None:
    """Tell POPULATION the kernel in FILE (`-`: standard input) for an attempt that was asked for, and get its verdict.

    FILE is a Python module with `run(*inputs)`. It becomes a candidate before anything judges it, then the run's judge
    records, checks, tunes and scores it. Telling the same file again prints the same verdict; if the judging was cut
    off, it is judged now. With --strategy, the strategy gets the credit where the compiled kernel shows its sign.

    \b
    evo-kernel tell softmax.db --attempt 4 mine.py --strategy one-pass-row
    generate | evo-kernel tell softmax.db --attempt 4 - --json
    evo-kernel tell softmax.db --attempt 4 --fail "no idea"

    Exit codes: 0 it passed; 1 it did not; 2 a mistake that you can mend; 3 the machine failed (tell it again); 130
    interrupted, by Ctrl-C or SIGTERM (tell it again).
    """
    if (file is None) == (reason is None):
        raise UserError("give either a FILE (`-` for standard input) to tell, or --fail REASON to give the attempt up")
    if reason is not None:
        _give_up(population, attempt, operator, reason, wait_s, as_json)
        return
    assert file is not None
    source = _read(file)
    try:
        told = _tell(population, attempt, source, strategy, operator, device, wait_s)
    except KeyboardInterrupt:
        click.echo(f"interrupted: attempt {attempt} is kept, with what was told; tell {file} again", err=True)
        sys.exit(130)
    if as_json:
        click.echo(json.dumps(told_data(told)))
    else:
        _show(told, population)
    if not told.evaluation.passed:
        sys.exit(3 if told.evaluation.status == "infra_error" else 1)


def told_data(told: Any) -> dict[str, Any]:
    """A verdict on an attempt as one object."""
    from evo_kernel.app.brief_data import evidence_data

    parent = told.recorded.brief.parent
    return {
        "attempt": told.recorded.brief.attempt,
        "candidate": told.recorded.candidate,
        "parent": parent.candidate,
        "status": str(told.evaluation.status),
        "reason": told.evaluation.reason,
        "score": told.evaluation.score,
        "parent_score": parent.evaluation.score if parent.evaluation is not None else None,
        "log_gain": told.log_gain,
        "witnessed": told.witnessed,
        "is_best": told.is_best,
        "evaluation": evidence_data(told.evaluation),
    }


def _give_up(population: Path, attempt: int, operator: str, reason: str, wait_s: float, as_json: bool) -> None:
    from evo_kernel.app import external_session

    with external_session.open_as_last(population, wait_s) as opened:
        brief = external_session.tickets_brief(opened, attempt)
        if (candidate := opened.ticket(attempt)[1].candidate) is not None:
            raise _told_already(population, attempt, candidate)
        opened.fail(brief, operator, reason)
    if as_json:
        click.echo(json.dumps({"attempt": attempt, "given_up": reason}))
    else:
        click.echo(f"attempt {attempt} is given up: {reason}")


def _told_already(path: Path, attempt: int, candidate: int) -> PopulationError:
    return PopulationError(
        f"attempt {attempt} was told already, another source: candidate {candidate}. Look at it with "
        f"`evo-kernel show {path} {candidate}`, or ask for another attempt."
    )


def _tell(
    path: Path, attempt: int, source: Any, strategy: str | None, operator: str, device: str | None, wait_s: float
) -> Any:
    """Record, judge, tell; each once, however often this is called."""
    from evo_kernel.app import external_session
    from populations.reading import PopulationReader

    with PopulationReader(path) as reader:  # what needs no judge starts none
        handed = reader.ticket(attempt)
        handed.check(time.time())
        view = reader.candidate(handed.candidate) if handed.candidate is not None else None
    if view is not None and view.proposal.source.sha256 != source.sha256:
        raise _told_already(path, attempt, view.candidate)
    if view is not None and external_session.has_verdict(view.evaluation):
        with external_session.open_as_last(path, wait_s) as population:
            return external_session.told_before(population, view.candidate)
    config = external_session.last_config(path, {"device": device})
    with external_session.judged(path, config, wait_s, lambda line: click.echo(line, err=True)) as parts:
        population = parts.population
        candidate = population.ticket(attempt)[1].candidate  # asked again: others may have come before us
        if candidate is not None:
            recorded = population.recorded(candidate)
            if recorded.proposal.source.sha256 != source.sha256:
                raise _told_already(path, attempt, candidate)
        else:
            brief = external_session.tickets_brief(population, attempt)
            recorded = population.record(brief, external_session.proposed(source, operator, strategy, brief))
        return external_session.judge_and_tell(parts, recorded)


def _read(file: str) -> Any:
    """The kernel that is told. Raises UserError with a plain sentence."""
    from evo_kernel.app.sources import read_source
    from evo_kernel.types import Source

    if file != "-":
        path = Path(file)
        if path.is_file() and path.stat().st_size > LONGEST:
            raise UserError(f"{file} is longer than {LONGEST // 2**20} MiB: tell one Python module with `run(*inputs)`")
        return read_source(path)
    data = sys.stdin.buffer.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise UserError(f"standard input is longer than {LONGEST // 2**20} MiB: tell one Python module")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError("standard input is not UTF-8 text, so it is no Python module") from error
    if not text.strip():
        raise UserError("standard input is empty: pipe one Python module with `run(*inputs)` in, or name a FILE")
    return Source(text)


def _show(told: Any, path: Path) -> None:
    from evo_kernel.app.verdicts import show_evaluation

    show_evaluation(told.evaluation)
    number, parent = told.recorded.candidate, told.recorded.brief.parent
    click.echo(f"candidate {number}, child of candidate {parent.candidate}" + _gain(told))
    if told.evaluation.status == "infra_error":
        click.echo(f"it is kept and pending: tell it again, or `evo-kernel resume {path}`", err=True)


def _gain(told: Any) -> str:
    import math

    if told.log_gain is None:
        return ""
    best = ", the best so far" if told.is_best else ""
    return f": {math.exp(told.log_gain):.3f}x as fast as its parent{best}"
