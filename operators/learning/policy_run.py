"""Train a policy from its first weights or its checkpoint, and keep the best so far in the file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from evo_kernel.errors import UserError
from operators.learning import checkpoint
from operators.learning.language import LanguagePolicy, LanguageSettings
from operators.learning.network import NetworkSettings, PolicyNetwork, Scorer
from operators.learning.policy_features import Seen
from operators.learning.training import METHODS, Progress, training
from operators.learning.tree import Tree


@dataclass(frozen=True)
class PolicyRun:
    """`model`: a language model's name, else the small transformer. `seconds`: of learning, in this session."""

    method: str = "imitation"
    model: str | None = None
    seconds: float = 1800.0
    seed: int = 0
    seen: Seen = field(default_factory=Seen)


def train_policy(
    path: Path, out: Path, settings: PolicyRun, device: str, resume: bool, tell: Callable[[Mapping[str, Any]], None]
) -> tuple[dict[str, Any], bool]:
    """Train on the tree at `path`: what the checkpoint at `out` says of itself, and whether nothing interrupted it.

    `tell` gets each word of progress. KeyboardInterrupt ends it as the time does.
    `resume`: go on from the checkpoint. Raises UserError.
    """
    if out.exists() and not resume:
        raise UserError(f"{out} is there already: --resume goes on with it, or name another file.")
    tree = Tree.load(path)
    learner, about = checkpoint.load(out) if out.exists() else (_new(settings), {})
    learner.to(device)
    known, past = float(about.get("shortfall", math.inf)), float(about.get("seconds", 0.0))
    whole = True
    try:
        for progress in training(learner, tree, METHODS[settings.method], settings.seconds, settings.seed, known=known):
            last = _told(progress, past)
            tell(last)
            if progress.best:
                about = {**last, "method": settings.method, "seed": settings.seed, **_origin(path, tree)}
                checkpoint.save(out, learner, about)
    except KeyboardInterrupt:
        whole = False
    if not about:
        raise UserError("nothing was learnt in this time: give it more --seconds.")
    return about, whole


def _new(settings: PolicyRun) -> Scorer:
    torch.manual_seed(settings.seed)
    if settings.model is not None:
        return LanguagePolicy(LanguageSettings(settings.model, seen=settings.seen))
    return PolicyNetwork(NetworkSettings(seen=settings.seen))


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
