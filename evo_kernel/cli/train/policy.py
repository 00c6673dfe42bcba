"""`train policy`: a policy from a tree of transitions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from evo_kernel.cli.options import DEVICES, JSON, PATH, TREE_FILE


@click.command()
@TREE_FILE
@click.option("--out", required=True, type=PATH, help="The checkpoint.")
@click.option(
    "--method",
    type=click.Choice(["imitation", "ppo"]),
    default="imitation",
    show_default=True,
    help="imitation of the tree's best actions, or reinforcement learning on walks over it.",
)
@click.option("--seconds", type=click.FloatRange(min=0), default=1800, show_default=True, help="Training time.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights and samples.")
@click.option(
    "--device",
    type=DEVICES,
    default="auto",
    show_default=True,
    help="Device for training; auto uses a GPU if there is one.",
)
@click.option("--resume", is_flag=True, help="Continue from the checkpoint in --out.")
@JSON
def policy(
    tree_file: Path,
    out: Path,
    method: str,
    seconds: float,
    seed: int,
    device: str,
    resume: bool,
    as_json: bool,
) -> None:
    """Train a policy on the training tasks of a tree. Held-out tasks are not used.

    The policy's input is a kernel's plan, its times, and earlier attempts.

    Some training tasks are used for validation: the checkpoint with the smallest expected loss of log gain against the
    best action is kept. Ctrl-C ends the training and keeps the best checkpoint. Use it with
    `--set operators.policy=trained --set operators.checkpoint=FILE`.
    """
    from evo_kernel.app.train.device import chosen_device
    from operators.learning.policy_training import train_policy

    def tell(told: Mapping[str, Any]) -> None:
        if not as_json:
            click.echo(_line(told))

    about, whole = train_policy(tree_file, out, method, seconds, seed, chosen_device(device), resume, tell)
    if not whole:
        click.echo("interrupted; the best so far is kept", err=True)
    told = {"checkpoint": str(out), "bytes": out.stat().st_size, **about}
    click.echo(json.dumps(told) if as_json else f"{out}: {told['bytes'] / 2**20:.1f} MB, {_line(about)}")


def _line(told: Mapping[str, Any]) -> str:
    return (
        f"{told['seconds']:.0f} s, step {told['step']}, shortfall {told['shortfall']:.4f}, loss {told['loss']:.4f}, "
        f"critic {told['critic']:.4f}"
    )
