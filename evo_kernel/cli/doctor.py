"""`doctor`: what this machine can do."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from evo_kernel.cli.options import JSON


@click.command()
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What a search would use: cuda asks for a GPU, cpu leaves those that are there alone.",
)
@JSON
def doctor(device: str, as_json: bool) -> None:
    """Look at what a search needs here: torch, Triton, GPUs and their ceilings, compiler, recorder, its walls.

    Every GPU is listed with its clocks, its memory and who else computes on it; the judge's process is started on each
    visible one. Exit code 1 when something that is needed does not work.
    """
    from evo_kernel.fitness.doctor import diagnose

    findings = diagnose(device)
    if as_json:
        click.echo(json.dumps({"device": device, "findings": [asdict(finding) for finding in findings]}))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = "ok" if finding.ok else "NO" if finding.needed else "--"
            click.echo(f"{mark} {finding.name:<{width}}  {finding.detail}")
            if finding.advice and mark != "ok":
                click.echo(f"   {'':<{width}}  {finding.advice}")
    if any(finding.needed and not finding.ok for finding in findings):
        sys.exit(1)
