"""Train a policy from its first weights or its checkpoint, and keep the best so far in the file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from evo_kernel.errors import UserError
from operators.learning import checkpoint
from operators.learning.imitation import Progress, training
from operators.learning.network import PolicyNetwork
from operators.learning.tree import Tree


def train_policy(
    path: Path, out: Path, method: str, seconds: float, seed: int, device: str, resume: bool,
    tell: Callable[[Mapping[str, Any]], None],
) -> tuple[dict[str, Any], bool]:  # fmt: skip
    """Train on the tree at `path`: what the checkpoint at `out` says of itself, and whether nothing interrupted it.

    `tell` gets each word of progress. KeyboardInterrupt ends it as the time does. `resume`: go on from the checkpoint.
    Raises UserError.
    """
    if out.exists() and not resume:
        raise UserError(f"{out} is there already: --resume goes on with it, or name another file.")
    tree = Tree.load(path)
    torch.manual_seed(seed)
    learner, about = checkpoint.load(out) if out.exists() else (PolicyNetwork(), {})
    learner.to(device)
    known, past = float(about.get("shortfall", math.inf)), float(about.get("seconds", 0.0))
    kinds = sorted({one.label for one in tree.environments.values()})
    origin = {"method": method, "seed": seed, "tree": path.name, "plans": tree.plans, "environments": ", ".join(kinds)}
    whole = True
    try:
        for progress in training(learner, tree, seconds, seed, known, method):
            last = _told(progress, past)
            tell(last)
            if progress.best:
                about = {**last, **origin}
                checkpoint.save(out, learner, about)
    except KeyboardInterrupt:
        whole = False
    if not about:
        raise UserError("nothing was learnt in this time: give it more --seconds.")
    return about, whole


def _told(progress: Progress, past: float) -> dict[str, Any]:
    numbers = {name: round(getattr(progress, name), 5) for name in ("shortfall", "loss", "critic")}
    return {"seconds": round(past + progress.seconds, 1), "step": progress.step, **numbers}
