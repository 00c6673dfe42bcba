"""`train policy`: a policy from a tree of transitions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evo_kernel.app.train.device import chosen_device
from evo_kernel.cli.options import JSON, TREE_FILE
from evo_kernel.errors import UserError

if TYPE_CHECKING:
    from operators.learning.network import Scorer
    from operators.learning.training import Progress
    from operators.learning.tree import Tree

ABLATED = ("history", "plan")


@click.command()
@TREE_FILE
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The checkpoint.")
@click.option(
    "--method",
    type=click.Choice(["imitation", "awr", "ppo"]),
    default="imitation",
    show_default=True,
    help="Imitate the tree's best actions; advantage-weighted regression; or PPO on its replay.",
)
@click.option("--model", help="A causal language model (Hugging Face name or folder), not the small transformer.")
@click.option("--seconds", type=click.FloatRange(min=0), default=1800, show_default=True, help="Of learning.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of first weights and of what is drawn.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where it is trained; auto takes a GPU if there is one.",
)
@click.option("--source/--no-source", default=None,
              help="Whether it sees the kernel's source. Left out: only a language model does.")  # fmt: skip
@click.option("--without", multiple=True, type=click.Choice(ABLATED), help="Hide this from the policy: an ablation.")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint that is there.")
@JSON
def policy(
    tree_file: Path,
    out: Path,
    method: str,
    model: str | None,
    seconds: float,
    seed: int,
    device: str,
    source: bool | None,
    without: tuple[str, ...],
    resume: bool,
    as_json: bool,
) -> None:
    """Train a policy on the training tasks of a tree; held-out tasks are never looked at.

    What decides is the plan of a kernel, its times and what was tried: small networks that saw the source, too, learnt
    the training tasks by heart and did worse on others.

    Some training tasks are kept back: what a draw of the policy falls short of the best action there, in log gain,
    decides which checkpoint is kept. Ctrl-C ends the training; the best so far is in the file. Use it with
    `--set operators.policy=trained --set operators.checkpoint=FILE`.
    """
    from operators.learning.checkpoint import save
    from operators.learning.training import METHODS, training
    from operators.learning.tree import Tree

    if out.exists() and not resume:
        raise UserError(f"{out} is there already: --resume goes on with it, or name another file.")
    tree = Tree.load(tree_file)
    learner, about = _learner(out, model, bool(model) if source is None else source, without, seed, resume)
    learner.to(chosen_device(device))
    known = float(about.get("shortfall", math.inf))
    past = float(about.get("seconds", 0.0))
    last: dict[str, Any] = {}
    try:
        for progress in training(learner, tree, METHODS[method], seconds, seed, known=known):
            last = _told(progress, past)
            if not as_json:
                click.echo(_line(last))
            if progress.best:
                about = {**last, "method": method, "seed": seed, **_origin(tree_file, tree)}
                save(out, learner, about)
    except KeyboardInterrupt:
        click.echo("interrupted; the best so far is kept", err=True)
    if not about:
        raise UserError("nothing was learnt in this time: give it more --seconds.")
    told = {"checkpoint": str(out), "bytes": out.stat().st_size, **about}
    click.echo(json.dumps(told) if as_json else f"{out}: {told['bytes'] / 2**20:.1f} MB, {_line(about)}")


def _learner(
    out: Path, model: str | None, source: bool, without: tuple[str, ...], seed: int, resume: bool
) -> tuple[Scorer, dict[str, Any]]:
    import torch

    from operators.learning import checkpoint
    from operators.learning.language import LanguagePolicy, LanguageSettings
    from operators.learning.network import NetworkSettings, PolicyNetwork
    from operators.learning.policy_features import Seen

    if resume and out.exists():
        return checkpoint.load(out)
    torch.manual_seed(seed)
    seen = Seen(source=source, **{name: name not in without for name in ABLATED})
    if model is not None:
        return LanguagePolicy(LanguageSettings(model, seen=seen)), {}
    return PolicyNetwork(NetworkSettings(seen=seen)), {}


def _origin(path: Path, tree: Tree) -> dict[str, Any]:
    kinds = sorted({one.label for one in tree.environments.values()})
    return {"tree": path.name, "plans": tree.plans, "environments": ", ".join(kinds)}


def _told(progress: Progress, past: float) -> dict[str, Any]:
    report = progress.report
    return {
        "seconds": round(past + progress.seconds, 1),
        "step": report.step,
        "decisions": report.decisions,
        "shortfall": round(progress.shortfall, 5),
        **{name: round(value, 5) for name, value in report.numbers.items()},
    }


def _line(told: dict[str, Any]) -> str:
    numbers = [f"{name} {value:.4f}" for name, value in told.items() if name in ("loss", "critic", "reward", "kl")]
    return f"{told['seconds']:.0f} s, step {told['step']}, shortfall {told['shortfall']:.4f}, {', '.join(numbers)}"
