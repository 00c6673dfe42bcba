"""`status`: where a run stands, also while the population is being written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evo_kernel.app.reference_times import ceilings_line, times_text
from evo_kernel.app.usage import model_lines, operator_lines
from evo_kernel.cli.options import JSON, POPULATION
from evo_kernel.observe.formatting import against, age_text, busy_text, counts_text, fault_lines, stages_text

if TYPE_CHECKING:
    from populations.views import Best, RunStatus


@click.command()
@POPULATION
@JSON
def status(population: Path, as_json: bool) -> None:
    """Show where the run of POPULATION stands: attempts, verdicts, cost, best so far, and who writes it."""
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        found = reader.status()
    if as_json:
        click.echo(json.dumps(found.as_data()))
        return
    label = found.environment.label if found.environment else "not judged yet"
    for name, value in [*_counts(found, label), *_machine(found)]:
        click.echo(f"{name:<12} {value}")


def _counts(found: RunStatus, label: str) -> list[tuple[str, str]]:
    """What was done and spent."""
    writer = f"written by process {found.writer[0]} on {found.writer[1]}" if found.writer else "not running"
    return [
        ("population", f"{found.path} ({found.task}), {writer}"),
        ("best", _standing(found, found.best, label)),
        ("champion", _standing(found, found.champion, label)),
        *_survived(found.champion),
        ("attempts", f"{found.attempts}; {found.open_attempts} open, {found.failures} without a proposal, "
                     f"{found.abandoned} abandoned" + f", {found.handed_out} handed out" * bool(found.handed_out)),
        ("candidates", f"{found.candidates}; {counts_text(found.verdicts) or 'none judged'}; {found.pending} pending"),
        ("evaluations", counts_text(found.evaluations) or "none"),
        ("cost", f"{found.wall_s / 60:.1f} min over {found.sessions} session(s), {found.gpu_s:.1f} s of GPU, "
                 f"${found.dollars:.2f}, {found.tokens} tokens"),
        *operator_lines(found.operators),
        *model_lines(found.models),
    ]  # fmt: skip


def _standing(status: RunStatus, found: Best | None, label: str) -> str:
    if found is None:
        return "none yet"
    score = f"{found.score:.3f}x {against(status.baselines.values())}".rstrip() if found.score else "passed"
    return f"{score} by candidate {found.candidate}, {'' if found.confirmed else 'not '}confirmed, {label}"


def _survived(champion: Best | None) -> list[tuple[str, str]]:
    if champion is None or champion.survived is None:
        return []
    hidden = f"; {champion.hidden:.3f}x on hidden cases" if champion.hidden is not None else ""
    return [
        ("survived", f"{champion.survived:.0%} of the claimed {champion.claimed:.3f}x over the first kernel{hidden}")
    ]


def _machine(found: RunStatus) -> list[tuple[str, str]]:
    """What the run is doing now, and what its kernels are held against."""
    lines: list[tuple[str, str]] = []
    if found.pipeline is not None:
        age = age_text(found.pipeline, time.time())
        lines.append(("in flight", f"{stages_text(found.pipeline)}   ({age})"))
        if busy := busy_text(found.pipeline):
            lines.append(("GPU", busy))
    for case in dict.fromkeys((*found.times, *found.baselines)):
        lines.append(("times", f"{case}: {times_text(found, case)}"))
    lines += [("", line) for line in fault_lines(found.baseline_faults)]
    if found.environment is not None:
        lines.append(("ceilings", ceilings_line(found.environment, found.ceilings)))
    return lines
