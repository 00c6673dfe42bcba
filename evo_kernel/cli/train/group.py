"""`train`: grow a tree of transitions, and train on it. Each command is a file of its own, named here."""

from __future__ import annotations

import click

from evo_kernel.cli.lazy import LazyGroup

COMMANDS = {
    "collect": ("collect", "Judge what the offline rewriter can do, for a tree of transitions to learn from."),
    "policy": ("policy", "Train a policy on a tree of transitions."),
    "evaluate": ("evaluate", "Hold policies against uniform choice and the bandit, on held-out tasks."),
    "export-sft": ("export", "Examples of edits, from populations and trees, to train a coder on."),
    "coder": ("coder", "Train a coder: supervised, then by the judge's rewards."),
}


@click.command(cls=LazyGroup, commands_in=("evo_kernel.cli.train", COMMANDS))
def train() -> None:
    """Learning to optimise: stored transitions, policies and coders trained on them (docs/guides/learning.md)."""
