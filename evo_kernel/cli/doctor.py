"""`doctor`: what this machine can do."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Look at what a search needs here: torch, Triton, GPU, compiler, recorder and the walls around it.

    Exit code 1 when something that is needed does not work.
    """
    from evo_kernel.fitness.doctor import diagnose

    findings = diagnose()
    if as_json:
        click.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            click.echo(f"{'ok ' if finding.ok else 'NO '} {finding.name:<18} {finding.detail}")
            if finding.advice and not finding.ok:
                click.echo(f"    {finding.advice}")
    if any(not finding.ok for finding in findings if finding.name in ("gpu", "recorder", "compiler (sm_90)")):
        sys.exit(1)
