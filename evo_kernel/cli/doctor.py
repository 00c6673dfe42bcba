"""`doctor`: checks what a search needs on this machine."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from evo_kernel.cli.options import DEVICES, JSON, JudgePlace
from evo_kernel.judge_place import RAY


@click.command()
@click.option(
    "--device",
    type=DEVICES,
    default="auto",
    show_default=True,
    help="What a search would use: cuda needs a GPU, cpu ignores GPUs.",
)
@click.option(
    "--judge",
    "judge_at",
    type=JudgePlace(),
    metavar="ray|ray:ADDRESS",
    help="Also check Ray, on all nodes of a cluster.",
)
@click.option("--clear", is_flag=True, help="Delete what earlier runs measured on this machine; check nothing.")
@JSON
def doctor(device: str, judge_at: str | None, clear: bool, as_json: bool) -> None:
    """Check what a search needs: torch, Triton, GPUs and their ceilings, compiler, recorder and sandbox.

    Lists every GPU with its clocks, memory and other users, and starts the judge's process on each visible one. Also
    lists the stored measurements that runs share: GPU ceilings and baseline times. Exit code 1 if something that is
    needed does not work.
    """
    if clear:
        from evo_kernel import user_cache

        count = user_cache.clear()
        told = f"{count} file(s) removed from {user_cache.folder()}"
        click.echo(json.dumps({"removed": count, "folder": str(user_cache.folder())}) if as_json else told)
        return
    from evo_kernel.fitness.doctor import diagnose

    findings = diagnose(device)
    if judge_at and judge_at.startswith(RAY):
        from evo_kernel.app.ray_judges import diagnose_nodes

        findings += diagnose_nodes(judge_at)
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
