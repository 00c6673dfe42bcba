"""`status`, `show` and `tree`: looking at a population, also while it is being written."""

from __future__ import annotations

import difflib
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from evo_kernel.errors import UserError

_FILE = click.argument("population", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command()
@_FILE
@_JSON
def status(population: Path, as_json: bool) -> None:
    """Where the run of POPULATION stands: attempts, verdicts, cost, best so far, and who writes it."""
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        found = reader.status()
    if as_json:
        click.echo(json.dumps(found.as_data()))
        return
    label = found.environment.label if found.environment else "not judged yet"
    for name, value in [*_counts(found, label), *_machine(found)]:
        click.echo(f"{name:<12} {value}")


def _counts(found: Any, label: str) -> list[tuple[str, str]]:
    """What was done and spent."""
    writer = f"written by process {found.writer[0]} on {found.writer[1]}" if found.writer else "not running"
    verdicts = ", ".join(f"{count} {name}" for name, count in sorted(found.verdicts.items()))
    charged = ", ".join(f"{count} {name}" for name, count in sorted(found.evaluations.items()))
    return [
        ("population", f"{found.path} ({found.task}), {writer}"),
        ("best", _standing(found.best, label)),
        ("champion", _standing(found.champion, label)),
        *_survived(found.champion),
        ("attempts", f"{found.attempts}; {found.open_attempts} open, {found.failures} without a proposal, "
                     f"{found.abandoned} abandoned" + f", {found.handed_out} handed out" * bool(found.handed_out)),
        ("candidates", f"{found.candidates}; {verdicts or 'none judged'}; {found.pending} pending"),
        ("evaluations", charged or "none"),
        ("cost", f"{found.wall_s / 60:.1f} min over {found.sessions} session(s), {found.gpu_s:.1f} s of GPU, "
                 f"${found.dollars:.2f}, {found.tokens} tokens"),
        *operator_lines(found.operators),
        *model_lines(found.models),
    ]  # fmt: skip


def operator_lines(operators: Sequence[Any]) -> list[tuple[str, str]]:
    """What came of each operator's attempts."""
    return [
        (
            "operator",
            f"{one.operator}: {one.attempts} attempts, {one.candidates} candidates, {one.passed} passed"
            + (f", best {one.best_score:.3f}" if one.best_score is not None else "")
            + (f", ${one.dollars:.2f}" if one.dollars else ""),
        )
        for one in operators
    ]


def model_lines(models: Sequence[Any]) -> list[tuple[str, str]]:
    """What each language model was asked, and what that cost."""
    return [
        (
            "model",
            f"{one.model}: {one.calls} calls, {one.tokens_in} tokens in ({one.cached_share:.0%} cached), "
            f"{one.tokens_out} out, ${one.dollars:.4f}"
            + (f" and {one.unpriced} calls of unknown price" if one.unpriced else "")
            + f", {one.errors} errors",
        )
        for one in models
    ]


def _machine(found: Any) -> list[tuple[str, str]]:
    """What the run is doing now, and what its kernels are held against."""
    from evo_kernel.observe.words import age_text, busy_text, fault_lines, stages_text

    lines: list[tuple[str, str]] = []
    if found.pipeline is not None:
        age = age_text(found.pipeline, time.time())
        lines.append(("in flight", f"{stages_text(found.pipeline)}   ({age})"))
        if busy := busy_text(found.pipeline):
            lines.append(("GPU", busy))
    for case, times in found.baselines.items():
        lines.append(("baselines", f"{case}: {_baselines_text(times)}"))
    lines += [("", line) for line in fault_lines(found.baseline_faults)]
    if found.environment is not None:
        lines.append(("ceilings", _ceilings_line(found.environment, found.ceilings)))
    return lines


def _baselines_text(times: Mapping[str, float]) -> str:
    """The fastest first: it is the denominator."""
    ranked = sorted(times.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {us:.1f} µs" + " (denominator)" * (n == 0) for n, (name, us) in enumerate(ranked))


def _ceilings_line(environment: Any, stored: Mapping[str, float]) -> str:
    """What shares of the speed of light refer to."""
    from evo_kernel.fitness.ceilings import Ceilings
    from evo_kernel.fitness.targets import target_for

    if measured := Ceilings.from_data(stored):
        return f"{measured.text}, measured ({environment.device})"
    arch = environment.device.removeprefix("sm_")
    if environment.kind == "measured" or not arch.isdecimal():
        return f"not measured yet ({environment.device})"
    return f"{Ceilings.of_target(target_for(int(arch))).text}, from the table ({environment.device})"


def _standing(found: Any, label: str) -> str:
    if found is None or found.score is None:
        return "none yet"
    return f"{found.score:.3f} by candidate {found.candidate}, {'' if found.confirmed else 'not '}confirmed, {label}"


def _survived(champion: Any) -> list[tuple[str, str]]:
    if champion is None or champion.survived is None:
        return []
    return [("survived", f"{champion.survived:.0%} of the claimed {champion.claimed:.3f}x over the first kernel")]


@click.command()
@_FILE
@click.argument("candidate", default="leader", metavar="[CANDIDATE]")
@click.option("--source", "only_source", is_flag=True, help="Print the source alone.")
@click.option("--diff", "only_diff", is_flag=True, help="Print the diff to the parent alone.")
@_JSON
def show(population: Path, candidate: str, only_source: bool, only_diff: bool, as_json: bool) -> None:
    """One CANDIDATE: score, evidence, path of strategies, source, diff to its parent.

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
    diff = _diff(parent.proposal.source.text if parent else "", view.proposal.source.text, view.parent, number)
    if only_source:
        click.echo(view.proposal.source.text)
    elif only_diff:
        click.echo(diff)
    elif as_json:
        held = {"baseline_faults": faults, "ceilings": ceilings}
        click.echo(json.dumps(_view_data(view, path, confirmation, diff) | held))
    else:
        _show(view, path, confirmation, diff if parent else "", _held_lines(made_in, faults, ceilings))


@click.command()
@_FILE
@click.option("--all", "everything", is_flag=True, help="Every candidate, not only the path of the best.")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    help="Write the graph of all candidates: .dot, .json or .graphml by its ending.",
)
@_JSON
def tree(population: Path, everything: bool, to: Path | None, as_json: bool) -> None:
    """The lineage: the paths of the champion and of the best candidate, or the whole graph to a file."""
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        if to is not None:
            reader.export_graph(to)
            click.echo(json.dumps({"file": str(to)}) if as_json else f"wrote {to}")
            return
        nodes = list(reader.nodes())
        leader = reader.champion() or reader.best()
        path = [step.candidate for step in reader.critical_path(leader.candidate)] if leader else []
        best = reader.best()  # not confirmed yet, where it is another one
        ahead = [step.candidate for step in reader.critical_path(best.candidate)] if best else []
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
            f"* the champion's path; candidate {ahead[-1]} is faster, and not confirmed: the next resume does that"
        )


def _number(reader: Any, text: str) -> int:
    if text.isdigit():
        return int(text)
    if text not in ("leader", "best", "champion"):
        raise UserError(f"{text!r} is not a candidate: use a number, `best` or `champion`")
    found = reader.champion() if text != "best" else None
    found = found or (reader.best() if text != "champion" else None)
    if found is None:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(reader.status().verdicts.items()))
        wanted = "been confirmed" if text == "champion" else "passed"
        click.echo(f"no candidate has {wanted} yet ({counts or 'none judged'})", err=True)
        sys.exit(1)
    return found.candidate


def _diff(before: str, after: str, parent: int | None, number: int) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"candidate {parent}", f"candidate {number}", lineterm="", n=3
    )
    return "\n".join(lines)


def _view_data(view: Any, path: Any, confirmation: Any, diff: str) -> dict[str, Any]:
    from evo_kernel.cli.confirmed import confirmed_data
    from evo_kernel.cli.verifying import evaluation_data

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
                  "score": s.score, "log_gain": s.log_gain} for s in path],
        "source": view.proposal.source.text,
        "diff": diff,
    }  # fmt: skip


def _held_lines(environment: Any, faults: Mapping[str, Mapping[str, str]], ceilings: Mapping[str, float]) -> list[str]:
    """What times are held against, beside the baselines."""
    from evo_kernel.observe.words import fault_lines

    return [*fault_lines(faults), f"ceilings: {_ceilings_line(environment, ceilings)}"] if environment else []


def _show(view: Any, path: Any, confirmation: Any, diff: str, held: Sequence[str]) -> None:
    from rich.text import Text

    from evo_kernel.cli.confirmed import confirmed_lines
    from evo_kernel.cli.mixed import mixed_lines
    from evo_kernel.cli.printing import open_console
    from evo_kernel.cli.summary import case_table

    console = open_console()

    def say(line: str, style: str = "") -> None:
        console.print(Text(line, style=style), soft_wrap=True)

    strategy = view.proposal.strategy.key if view.proposal.strategy else view.proposal.operator
    parent = f"parent {view.parent}" if view.parent else "a first kernel"
    say(f"candidate {view.candidate}, {parent}, {strategy}", "bold")
    evaluation = view.evaluation
    if evaluation is None:
        say("not judged yet")
    else:
        score = f", score {evaluation.score:.3f}" if evaluation.score is not None else ""
        reason = f": {evaluation.reason}" if evaluation.reason else ""
        say(f"{evaluation.status}{score}, {evaluation.environment.label}{reason}")
        if evaluation.measurements:
            console.print(case_table(evaluation, evaluation.environment.label))
            for line in held:
                say(line)
        for line in mixed_lines(evaluation):
            say(line)
        if evaluation.knobs:
            say("knobs: " + ", ".join(f"{k}={v}" for k, v in evaluation.knobs))
    for line in confirmed_lines(confirmation):
        say(line)
    say("path:")
    for step in path:
        gain = f"{math.exp(step.log_gain):6.2f}x" if step.log_gain is not None else "      -"
        say(f"  {gain}  {step.candidate:>5}  {step.strategy.key if step.strategy else step.operator}")
    for text, language in ((diff, "diff"), (view.proposal.source.text, "python")):
        _show_text(console, text, language)


def _show_text(console: Any, text: str, language: str) -> None:
    """Source text whole: coloured and wrapped on a terminal, as it is anywhere else."""
    if not text:
        return
    if not console.is_terminal:
        click.echo(text)
        return
    from rich.syntax import Syntax

    console.print(Syntax(text, language, theme="ansi_dark", background_color="default", word_wrap=True))


def _print_tree(nodes: list[dict[str, Any]], path: set[int]) -> None:
    from rich.tree import Tree

    from evo_kernel.cli.printing import open_console

    label = next((n["kind"] for n in nodes if n["kind"]), "")
    device = next((n["device"] for n in nodes if n["device"]), "")
    root = Tree(f"lineage, scores {label} ({device})")
    branches: dict[int, Any] = {}
    for node in nodes:
        score = f"{node['score']:.3f}" if node["score"] is not None else (node["status"] or "pending")
        mark = " *" if node["candidate"] in path else ""
        text = f"{node['candidate']}  {node['strategy'] or node['operator']}  {score}{mark}"
        above = branches.get(node["parent"] or 0, root)
        branches[node["candidate"]] = above.add(text, highlight=False)
    open_console().print(root, soft_wrap=True)
