"""`train`: grow a tree of transitions, and train policies and coders on it. `train coder` is in train_coder.py."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from evo_kernel.cli.main import LazyGroup
from evo_kernel.cli.options import DEVICE, DEVICES, JSON, JUDGE, PATH, TREE_FILE, UNCONFINED, echo
from evo_kernel.errors import UserError
from evo_kernel.judge_place import LOCAL, RAY
from operators.learning.tree import HELD_OUT

COMMANDS = {
    "collect": ("train", "Judge what the offline rewriter can do, for a tree of transitions to learn from."),
    "policy": ("train", "Train a policy on a tree of transitions."),
    "export-sft": ("train", "Examples of edits, from populations and trees, to train a coder on."),
    "coder": ("train_coder", "Train a coder: supervised, then by the judge's rewards."),
}


@click.command(cls=LazyGroup, commands_in=("evo_kernel.cli", COMMANDS))
def train() -> None:
    """Learning to optimise: stored transitions, policies and coders trained on them (docs/guides/learning.md)."""


@click.command()
@click.option("--out", required=True, type=PATH, help="The tree to write; kernels are collected in OUT.populations/.")
@click.option(
    "--tasks", default="", help="Comma-separated tasks; default: all built-in ones. TASK@CASE: only that case."
)
@click.option("--narrowed/--whole", default=True, help="Also make each search case a separate problem.")
@click.option("--seconds", default=540.0, show_default=True, help="Total time; 0: only pack what was collected.")
@DEVICE
@JUDGE
@click.option("--slice", "slice_s", default=40.0, show_default=True, help="Seconds before the next problem's turn.")
@click.option("--tune-plans", default=8, show_default=True, type=click.IntRange(0), help="Knob settings per kernel.")
@click.option("--threads", default=0, type=click.IntRange(0), help="Kernels in parallel; 0: cores + 2.")
@click.option("--held-out", default=",".join(HELD_OUT), show_default=True, help="Task families excluded from training.")
@click.option("--seed", default=0, show_default=True, help="Seed of the order of actions.")
@UNCONFINED
def collect(
    out: Path,
    tasks: str,
    device: str,
    judge_at: str | None,
    tune_plans: int,
    threads: int,
    held_out: str,
    seed: int,
    unconfined: bool,
    **collecting: Any,
) -> None:
    """Judge the offline rewriter's edits of the built-in tasks, and write a tree of transitions for training.

    With the same --out, a collection continues. Each problem is a population in OUT.populations/, which `show`, `tree`
    and `serve` read too. A killed run loses no finished evaluation. The problem with the least time so far is next, so
    that all tasks are covered at any time. Several commands with other --tasks may collect into one --out at the same
    time, each with its own CUDA_VISIBLE_DEVICES.
    """
    from evo_kernel.app.judges import shared_place
    from evo_kernel.app.train import collection
    from evo_kernel.app.train.collector import judging
    from evo_kernel.fitness.gpus import usable_cores
    from evo_kernel.fitness.judge import JudgeSettings

    named = [name.strip() for name in tasks.split(",") if name.strip()]
    collecting |= {"threads": threads or usable_cores() + 2, "held_out": tuple(held_out.split(","))}
    own, shared = JudgeSettings(unconfined=unconfined), contextlib.nullcontext(judge_at or LOCAL)
    if judge_at and judge_at.startswith(RAY):
        shared = shared_place(judge_at, device, own, lambda line: echo(line, err=True))
    with shared as at:
        config = judging(device, tune_plans, seed, unconfined, at)
        collection.collect(out, named, config, "evo-kernel " + shlex.join(sys.argv[1:]), **collecting)


@click.command()
@TREE_FILE
@click.option("--out", required=True, type=PATH, help="The checkpoint: a file; with --model, a folder.")
@click.option("--model", help="Adapt a pretrained causal language model (LoRA): a Hugging Face name, a folder, or a "
              "path that ends in .gguf. Default: a small transformer from nothing.")  # fmt: skip
@click.option(
    "--method",
    type=click.Choice(["imitation", "ppo"]),
    default="imitation",
    show_default=True,
    help="imitation of the tree's best actions, or reinforcement learning on walks over it.",
)
@click.option("--seconds", type=click.FloatRange(min=0), default=1800, show_default=True, help="Training time.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights and samples.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Learning rate of the policy.")
@click.option("--batch", type=click.IntRange(1), help="Decisions in a gradient step; with ppo, also walks at a time.")
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
    device: str,
    resume: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Train a policy on the training tasks of a tree. Held-out tasks are not used.

    The policy's input is a kernel's plan, its times, and earlier attempts.

    Some training tasks are used for validation: the checkpoint with the smallest expected loss of log gain against the
    best action is kept. Ctrl-C ends the training and keeps the best checkpoint. Use it with
    `--set operators.policy=trained --set operators.checkpoint=FILE`.

    With --model (extra `rl`), an offer is as likely as its text after a prompt that tells the decision. Adapters and a
    critic are trained; --resume goes on from the latest ones. Use it with `--set operators.policy=DIR`.

    \b
    evo-kernel train policy --out policy.pt --seconds 600
    evo-kernel train policy --out lm/ --model google/gemma-3-270m --seconds 500
    evo-kernel train policy --out lm/ --resume --method ppo --seconds 500
    """
    from evo_kernel.app.train.coder import chosen_device
    from operators.learning.policy_training import Training, train_policy

    def tell(told: Mapping[str, Any]) -> None:
        if not as_json:
            click.echo(_line(told))

    about, whole = train_policy(tree_file, out, Training(device=chosen_device(device), **how), resume, tell)
    if not whole:
        click.echo("interrupted; the best so far is kept", err=True)
    written = [one for one in out.rglob("*") if one.is_file()] if out.is_dir() else [out]
    told = {"checkpoint": str(out), "bytes": sum(one.stat().st_size for one in written), **about}
    click.echo(json.dumps(told) if as_json else f"{out}: {told['bytes'] / 2**20:.1f} MB, {_line(about)}")


def _line(told: Mapping[str, Any]) -> str:
    return (
        f"{told['seconds']:.0f} s, step {told['step']}, shortfall {told['shortfall']:.4f}, loss {told['loss']:.4f}, "
        f"critic {told['critic']:.4f}"
    )


@click.command("export-sft")
@click.argument("sources", nargs=-1, type=PATH)
@click.option("--out", required=True, type=PATH, help="The file of examples to write (JSON lines).")
@click.option(
    "--walks", default=0, show_default=True, help="Additional examples from random edits of the offline rewriter."
)
@click.option("--task", "tasks", multiple=True, help="Task for walks; repeatable. Default: every built-in one.")
@click.option("--invented", default=0, show_default=True,
              help="Generated references, used for half of the walks.")  # fmt: skip
@click.option("--any-witness", is_flag=True, help="Also keep edits whose strategy the plan does not show.")
@click.option("--min-gain", type=float, help="Minimal log(parent's time ÷ child's); 0 keeps edits that are not slower.")
@click.option("--strategy", "strategies", multiple=True, help="Keep only this strategy; repeatable.")
@click.option("--held-out", multiple=True, help="A task family or task excluded from training; repeatable.")
@click.option("--split", type=click.Choice(["all", "train", "held-out"]), default="all", show_default=True)
@click.option("--most", default=0, show_default=True, help="Maximal characters of a kernel; 0: unlimited.")
@click.option("--seed", default=0, show_default=True, help="Seed of the walks.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Processes for walks.")
@JSON
def export_sft(
    sources: tuple[Path, ...],
    out: Path,
    walks: int,
    any_witness: bool,
    min_gain: float | None,
    strategies: tuple[str, ...],
    most: int,
    as_json: bool,
    **making: Any,
) -> None:
    """Write examples of edits for the supervised training of a coder.

    SOURCES are population files and trees of transitions. An example is a conversation in TRL's format: a task, a
    parent kernel, a strategy, and the resulting edit, with the reasoning if an agent wrote it. Edits are kept once if
    they passed and the plan shows the strategy. Edits of walks are not judged: the rewriter only makes provably correct
    ones. A task family is never split.

    \b
    evo-kernel train export-sft softmax.db matmul.db --out edits.jsonl --min-gain 0
    evo-kernel train export-sft --walks 4000 --held-out softmax --out walks.jsonl
    evo-kernel train export-sft --walks 60000 --invented 600 --workers 16 --out walks.jsonl
    """
    from evo_kernel.app.train.examples import export_examples
    from operators.learning.coder.examples import Wanted

    if not sources and not walks:
        raise UserError(
            "nothing to export: name populations or trees, or let the rewriter make examples with --walks N"
        )
    if making["invented"] and not walks:
        raise UserError("--invented makes references for walks: say --walks N")
    wanted = Wanted(not any_witness, min_gain, frozenset(strategies), most)
    counts = export_examples(out, sources, wanted, walks=walks, **making)
    if as_json:
        click.echo(json.dumps(counts))
        return
    click.echo(f"{counts['examples']} examples in {out}, {counts['with_reasoning']} with reasoning")
    for what in ("splits", "families", "strategies"):
        click.echo(f"  {what}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts[what].items())))
