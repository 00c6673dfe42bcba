"""`show`: one candidate, with its evidence and what made it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evo_kernel.app.confirmed_gain import confirmed_data, confirmed_lines
from evo_kernel.app.reference_times import held_lines
from evo_kernel.app.remaining_torch_operations import mixed_lines
from evo_kernel.app.sources import source_diff
from evo_kernel.app.verdicts import evaluation_data, path_lines, show_cases
from evo_kernel.cli.options import JSON, POPULATION
from evo_kernel.errors import UserError
from evo_kernel.observe.formatting import counts_text, score_text
from evo_kernel.types import Evaluation

if TYPE_CHECKING:
    from rich.console import Console

    from populations.lineage import PathStep
    from populations.reading import PopulationReader
    from populations.views import CandidateView


@click.command()
@POPULATION
@click.argument("candidate", default="leader", metavar="[CANDIDATE]")
@click.option("--source", "only_source", is_flag=True, help="Print only the source.")
@click.option("--diff", "only_diff", is_flag=True, help="Print only the diff to the parent.")
@JSON
def show(population: Path, candidate: str, only_source: bool, only_diff: bool, as_json: bool) -> None:
    """Show one CANDIDATE: score, bottleneck, evidence, path of strategies, diff to its parent, source as it was scored.

    CANDIDATE is a number, `best` (the fastest that no confirmation refuted) or `champion` (the fastest confirmed). Left
    out: the champion if there is one, else the best.
    """
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        number = _number(reader, candidate)
        view = reader.candidate(number)
        parent = reader.candidate(view.parent) if view.parent else None
        made_in = view.evaluation.environment if view.evaluation else None
        faults, ceilings = reader.baseline_faults(), reader.ceilings(made_in)
        path, confirmation = reader.critical_path(number), reader.confirmation(number)
    diff = source_diff(parent.source.text if parent else "", view.source.text, view.parent, number)
    if only_source:
        click.echo(view.source.text)
    elif only_diff:
        click.echo(diff)
    elif as_json:
        held = {"baseline_faults": faults, "ceilings": ceilings}
        click.echo(json.dumps(_view_data(view, path, confirmation, diff) | held))
    else:
        _show(view, path, confirmation, diff if parent else "", held_lines(made_in, faults, ceilings))


def _number(reader: PopulationReader, text: str) -> int:
    if text.isdigit():
        return int(text)
    named = {"leader": reader.leader, "best": reader.best, "champion": reader.champion}
    if text not in named:
        raise UserError(f"{text!r} is not a candidate: use a number, `best` or `champion`")
    if (found := named[text]()) is None:
        counts = counts_text(reader.status().verdicts)
        wanted = "been confirmed" if text == "champion" else "passed"
        click.echo(f"no candidate has {wanted} yet ({counts or 'none judged'})", err=True)
        sys.exit(1)
    return found.candidate


def _view_data(
    view: CandidateView, path: Sequence[PathStep], confirmation: Evaluation | None, diff: str
) -> dict[str, Any]:
    return {
        "candidate": view.candidate,
        "parent": view.parent,
        "generation": view.generation,
        "island": view.island,
        "operator": view.proposal.operator,
        "strategy": view.proposal.strategy.key if view.proposal.strategy else None,
        "steps": [{"action": s.action, "outcome": s.outcome, "detail": s.detail} for s in view.proposal.steps],
        "evaluation": evaluation_data(view.evaluation) if view.evaluation else None,
        "confirmation": confirmed_data(confirmation),
        "path": [{"candidate": s.candidate, "strategy": s.strategy.name if s.strategy else s.operator,
                  "tuning": s.tuning, "score": s.score, "log_gain": s.log_gain} for s in path],
        "source": view.source.text,
        "diff": diff,
    }  # fmt: skip


def _show(
    view: CandidateView, path: Sequence[PathStep], confirmation: Evaluation | None, diff: str, held: Sequence[str]
) -> None:
    from evo_kernel.app.console import open_console, say

    console = open_console()
    strategy = view.proposal.strategy.key if view.proposal.strategy else view.proposal.operator
    parent = f"parent {view.parent}" if view.parent else "a first kernel"
    say(console, f"candidate {view.candidate}, {parent}, {strategy}", style="bold")
    evaluation = view.evaluation
    if evaluation is None:
        say(console, "not judged yet")
    else:
        score = f", score {score_text(evaluation)}" if evaluation.score is not None else ""
        reason = f": {evaluation.reason}" if evaluation.reason else ""
        say(console, f"{evaluation.status}{score}, {evaluation.environment.label}{reason}")
        if evaluation.measurements:
            show_cases(console, evaluation, evaluation.environment.label)
            say(console, *held)
        say(console, *mixed_lines(evaluation))
        if evaluation.knobs:
            say(console, "knobs: " + ", ".join(f"{k}={v}" for k, v in evaluation.knobs))
    say(console, *confirmed_lines(confirmation), *path_lines(path))
    for text, language in ((diff, "diff"), (view.source.text, "python")):
        _show_text(console, text, language)


def _show_text(console: Console, text: str, language: str) -> None:
    """Source text whole: coloured and wrapped on a terminal, as it is anywhere else."""
    if not text:
        return
    if not console.is_terminal:
        click.echo(text)
        return
    from rich.syntax import Syntax

    console.print(Syntax(text, language, theme="ansi_dark", background_color="default", word_wrap=True))
