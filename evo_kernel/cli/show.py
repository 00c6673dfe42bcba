"""`show`, `status`, `tree` and `report`: what a population holds, also while it is being written."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evo_kernel.app.verdicts import (
    ceilings_data,
    confirmed_data,
    confirmed_lines,
    evaluation_data,
    held_lines,
    mixed_lines,
    path_lines,
    show_cases,
    status_lines,
)
from evo_kernel.cli.options import JSON, NUMBER, PATH, POPULATION, number_of
from evo_kernel.errors import UserError
from evo_kernel.observe.formatting import (
    counts_text,
    score_text,
    source_diff,
)
from evo_kernel.types import Evaluation, escaped
from evo_kernel.types.gpus import label_of

if TYPE_CHECKING:
    from rich.console import Console

    from populations.lineage import PathStep
    from populations.reading import PopulationReader
    from populations.statistics import CandidateView


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
        _echo_text(view.source.text)
    elif only_diff:
        _echo_text(diff)
    elif as_json:
        held = {"baseline_faults": faults} | ceilings_data(made_in, ceilings)
        click.echo(json.dumps(_view_data(view, path, confirmation, diff) | held))
    else:
        _show(view, path, confirmation, diff if parent else "", held_lines(made_in, faults, ceilings))


def _number(reader: PopulationReader, text: str) -> int:
    named = {"leader": reader.leader, "best": reader.best, "champion": reader.champion}
    if text not in named:
        return number_of(text, "a number, `best` or `champion`")
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
    from evo_kernel.observe.live import open_console, say

    console = open_console()
    strategy = view.proposal.strategy.key if view.proposal.strategy else view.proposal.operator
    parent = f"parent {view.parent}" if view.parent else "a root"
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


def _echo_text(text: str) -> None:
    """Source text as it is, but on a terminal, which it could command."""
    click.echo(escaped(text) if sys.stdout.isatty() else text)


def _show_text(console: Console, text: str, language: str) -> None:
    """Source text whole: coloured and wrapped on a terminal, as it is anywhere else."""
    if not text:
        return
    if not console.is_terminal:
        click.echo(text)
        return
    from rich.syntax import Syntax

    console.print(Syntax(escaped(text), language, theme="ansi_dark", background_color="default", word_wrap=True))


@click.command()
@POPULATION
@JSON
def status(population: Path, as_json: bool) -> None:
    """Show where the run of POPULATION stands: attempts, verdicts, cost, best so far, and who writes it."""
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        found = reader.status()
    if as_json:
        click.echo(json.dumps(found.as_data() | ceilings_data(found.environment, found.ceilings)))
        return
    for name, value in status_lines(found):
        click.echo(escaped(f"{name:<12} {value}"))


@click.command()
@POPULATION
@click.option("--all", "everything", is_flag=True, help="Show every candidate, not only what led to improvements.")
@click.option(
    "--to",
    "files",
    type=PATH,
    multiple=True,
    help="Write all candidates to a file: .jsonl (with sources) or .graphml; repeatable.",
)
@JSON
def tree(population: Path, everything: bool, files: tuple[Path, ...], as_json: bool) -> None:
    """Show the lineage: the paths of the champion and of the best candidate, or the whole graph to a file."""
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        for path in files:
            reader.export_graph(path)
        if files:
            said = {"files": [str(path) for path in files]}
            click.echo(json.dumps(said) if as_json else "\n".join(f"wrote {path}" for path in files))
            return
        nodes = list(reader.nodes())
        leader = reader.leader()
        path = reader.path_candidates(leader.candidate) if leader else []
        best = reader.best()  # not confirmed yet, where it is another one
        ahead = reader.path_candidates(best.candidate) if best else []
    shown_too = {*path, *ahead}
    if as_json:
        shown = [node for node in nodes if everything or not path or node["candidate"] in shown_too]
        click.echo(json.dumps({"path": path, "candidates": shown}))
        return
    if not nodes:
        click.echo("no candidates yet")
        return
    _print_tree(nodes if everything or not path else [n for n in nodes if n["candidate"] in shown_too], set(path))
    if set(ahead) - set(path):
        click.echo(
            f"* the champion's path; candidate {ahead[-1]} is faster, and not confirmed: "
            f"`evo-kernel confirm {population}` does that"
        )


def _print_tree(nodes: list[dict[str, Any]], path: set[int]) -> None:
    from rich.tree import Tree

    from evo_kernel.observe.live import open_console

    label = next((label_of(n["kind"], n["device"]) for n in nodes if n["kind"]), "not known yet")
    root = Tree(f"lineage, scores {label}")
    branches: dict[int, Any] = {}
    for node in nodes:
        score = f"{node['score']:.3f}" if node["score"] is not None else (node["status"] or "pending")
        mark = " *" if node["candidate"] in path else ""
        text = f"{node['candidate']}  {node['strategy'] or node['operator']}  {score}{mark}"
        above = branches.get(node["parent"] or 0, root)
        branches[node["candidate"]] = above.add(escaped(text), highlight=False)
    open_console().print(root, soft_wrap=True)


@click.command()
@POPULATION
@click.option(
    "--to",
    "files",
    type=PATH,
    multiple=True,
    help="A .html or .md file to write; repeatable. POPULATION.html if left out.",
)
@click.option("--candidate", type=NUMBER, help="Report on this candidate instead of the champion, else the best.")
@JSON
def report(population: Path, files: tuple[Path, ...], candidate: int | None, as_json: bool) -> None:
    """Write a document about the run of POPULATION: plots, the champion edit by edit, tables, how to repeat it.

    The HTML is one file without scripts.

    \b
    evo-kernel report softmax.db --to softmax.html --to softmax.md
    """
    from evo_kernel.app.run_report import blocks, edits_of
    from evo_kernel.observe import document
    from populations.reading import PopulationReader

    places = files or (population.with_suffix(".html"),)
    for path in places:
        if path.suffix not in (".html", ".md"):
            raise UserError(f"a report is written as .html or .md, not {path.suffix!r}: rename {path.name}")
    with PopulationReader(population) as reader:
        edits = edits_of(reader, candidate)
        made, title = blocks(reader, edits), f"{reader.task.name}: evo-kernel"
    for path in places:
        document.save(path, title, made)
    if as_json:
        click.echo(json.dumps({"files": [str(path) for path in places], "path": [edit.as_data() for edit in edits]}))
    else:
        click.echo("\n".join(f"wrote {path}" for path in places))
