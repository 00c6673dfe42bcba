"""`judge`: serves a spool, the folder between searches and their judges."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from evo_kernel.cli.options import DEVICE, JSON, PATH, UNCONFINED, Duration, echo


@click.command()
@click.argument("folder", metavar="DIR", type=PATH)
@DEVICE
@click.option("--gpus", metavar="N|all", default="1", show_default=True, help="GPUs that judge in parallel.")
@click.option("--until-empty", is_flag=True, help="End when nothing is left to judge in DIR, instead of waiting.")
@click.option("--for", "for_s", type=Duration(), metavar="TIME", help="End after a time like 90s, 10m, 8h.")
@click.option("--assembler", default="bundled", show_default=True, help="As judge.assembler, for all that is judged.")
@UNCONFINED
@JSON
def judge(
    folder: Path,
    device: str,
    gpus: str,
    until_empty: bool,
    for_s: float | None,
    assembler: str,
    unconfined: bool,
    as_json: bool,
) -> None:
    """Judge what searches put into the folder DIR with `--judge spool:DIR`, and leave the verdicts there.

    Start as many of these as there are machines, whenever you like, where DIR can be seen (a shared file system) or
    carried (rsync). Each takes what others have not taken; what a server that died had in hand is judged again. Times
    compare only within one environment (GPU, driver, versions): a server leaves requests of other ones alone.

    Kernels run in the usual sandbox. A task file is trusted code, as with `run`: it runs here with your rights. So let
    nobody write to DIR whom you would not let run programs. Verdicts stay in DIR until you delete it.

    \b
    evo-kernel judge /shared/judging --gpus all
    evo-kernel judge /shared/judging --until-empty --for 10m     # in a batch job
    evo-kernel run softmax --judge spool:/shared/judging         # the search, elsewhere

    SIGTERM and Ctrl-C end it within 15 s: what is under way is finished, or given back. Exit codes: 0 it has served; 2
    a mistake that you can correct; 3 the machine failed.
    """
    from evo_kernel.app import early_start

    early_start.begin(None, device)
    from evo_kernel.app import judge_server
    from evo_kernel.fitness.judge import JudgeSettings

    own = JudgeSettings(unconfined=unconfined, assembler=assembler)
    served = judge_server.serve(folder, device, gpus, own, until_empty, for_s, lambda line: echo(line, err=True))
    click.echo(json.dumps(served.as_data()) if as_json else served.text)
    sys.stdout.flush()
    os._exit(0)  # threads whose requests were given back may still be at it
