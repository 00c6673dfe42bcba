"""`train`: grow a tree of transitions, and train on it. Each command is a file of its own, named here."""

from __future__ import annotations

import click

from evo_kernel.cli.lazy import LazyGroup

COMMANDS = {
    "collect": ("evo_kernel.cli.train.collect", "collect"),
    "policy": ("evo_kernel.cli.train.policy", "policy"),
    "evaluate": ("evo_kernel.cli.train.evaluate", "evaluate"),
    "export-sft": ("evo_kernel.cli.train.export", "export_sft"),
    "coder": ("evo_kernel.cli.train.coder", "coder"),
}
SUMMARIES = {
    "collect": "Judge what the offline rewriter can do, for a tree of transitions to learn from.",
    "policy": "Train a policy on a tree of transitions.",
    "evaluate": "Hold policies against uniform choice and the bandit, on held-out tasks.",
    "export-sft": "Examples of edits, from populations and trees, to train a coder on.",
    "coder": "Train a coder: supervised, then by the judge's rewards.",
}


@click.command(cls=LazyGroup, modules=COMMANDS, summaries=SUMMARIES)
def train() -> None:
    """Learning to optimise: stored transitions, policies and coders trained on them (docs/guides/learning.md)."""
