"""Training of a policy on a tree of transitions: by imitation of its best actions.

Scores are to say Q / UNIT, with Q of the tree itself, known by dynamic programming. The losses are a regression on
them, and the cross-entropy of their softmax, which tells the best apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import smooth_l1_loss
from torch.nn.utils.rnn import pad_sequence

from evo_kernel.errors import UserError
from operators.learning.network import PolicyNetwork, load_policy, save_policy
from operators.learning.policy_features import UNIT
from operators.learning.tree import Tree, TreeState
from operators.learning.values import Decisions, Values, learnable, parted, shortfall

FLOOR = -1e4  # stands for minus infinity in products with zero


LEARNING_RATE, LEAST_LEARNING_RATE = 1e-3, 1e-5
WEIGHT_DECAY = 0.05
BATCH = 32  # decisions in a step
REGRESSION, RANKING = 10.0, 0.1  # weights of the two losses
NEAR = 0.1  # errors of the regression count by their square up to this log gain
TELL_EVERY_S = 20.0


@dataclass(frozen=True)
class Progress:
    """After some seconds of learning. `shortfall`: of the tasks kept back, in log gain; lower is better, see values."""

    seconds: float
    step: int
    loss: float
    critic: float
    shortfall: float
    best: bool  # so far: worth keeping


def training(
    model: PolicyNetwork, tree: Tree, seconds: float, seed: int, known: float = math.inf
) -> Iterator[Progress]:
    """Learns from the training tasks for `seconds`. `known`: the best shortfall before."""
    learnt, kept_back = parted(tree)
    judge = kept_back if kept_back.transitions else learnt
    torch.manual_seed(seed)
    started = told = time.monotonic()

    def left() -> float:
        return 1.0 - (time.monotonic() - started) / seconds if seconds else 0.0

    steps = imitate(model.train(), learnt, np.random.default_rng(seed), left)
    for step, (loss, critic) in enumerate(steps, start=1):
        now = time.monotonic()
        over = now - started >= seconds
        if now - told < TELL_EVERY_S and not over:
            continue
        found = shortfall(model.eval(), judge)
        model.train()
        yield Progress(now - started, step, loss, critic, found, found < known)
        known, told = min(known, found), time.monotonic()
        if over:
            return


def imitate(
    model: PolicyNetwork,
    tree: Tree,
    rng: np.random.Generator,
    left: Callable[[], float] = lambda: 1.0,
    rate: float = LEARNING_RATE,
    batch: int = BATCH,
) -> Iterator[tuple[float, float]]:
    """One gradient step a `next()`, without end: the losses of scores and critic. `left`: the share of the time that is
    left, by which the learning rate falls.

    Raises ValueError where no state of the tree has a known action.
    """
    values, decisions = Values(tree), Decisions(tree, rng)
    # Every task gives as many states: some have a hundred times as many as others, for their kernels compile faster.
    tasks: dict[str, list[TreeState]] = {}
    for state in learnable(tree):
        tasks.setdefault(tree.problems[state.task].task, []).append(state)
    states = [tasks[name] for name in sorted(tasks)]
    optimiser = torch.optim.AdamW(model.parameters(), rate, weight_decay=WEIGHT_DECAY)
    while True:
        drawn = [states[at] for at in rng.integers(0, len(states), batch)]
        drawn = [some[int(rng.integers(0, len(some)))] for some in drawn]
        sights = [decisions.at(state) for state in drawn]
        worth = [torch.tensor(values.offers(state, sight)) for state, sight in zip(drawn, sights, strict=True)]
        scores, found = model(sights)
        wanted = pad_sequence([(q / UNIT).softmax(0) for q in worth], batch_first=True).to(scores)
        ranking = -(wanted * scores.log_softmax(-1).clamp(min=FLOOR)).sum(-1).mean()
        there = scores.isfinite()
        known = pad_sequence(worth, batch_first=True).to(scores)[there]
        loss = REGRESSION * smooth_l1_loss((UNIT * scores)[there], known, beta=NEAR) + RANKING * ranking
        critic = smooth_l1_loss(found, torch.stack([q.max() for q in worth]).to(found))
        for group in optimiser.param_groups:
            group["lr"] = max(rate * left(), LEAST_LEARNING_RATE)
        optimiser.zero_grad()
        (loss + critic).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        yield loss.item(), critic.item()


def train_policy(
    path: Path, out: Path, seconds: float, seed: int, device: str, resume: bool,
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
    learner, about = load_policy(out) if out.exists() else (PolicyNetwork(), {})
    learner.to(device)
    known, past = float(about.get("shortfall", math.inf)), float(about.get("seconds", 0.0))
    kinds = sorted({one.label for one in tree.environments.values()})
    origin = {"seed": seed, "tree": path.name, "plans": tree.plans, "environments": ", ".join(kinds)}
    whole = True
    try:
        for progress in training(learner, tree, seconds, seed, known):
            numbers = {name: round(getattr(progress, name), 5) for name in ("shortfall", "loss", "critic")}
            last = {"seconds": round(past + progress.seconds, 1), "step": progress.step, **numbers}
            tell(last)
            if progress.best:
                about = {**last, **origin}
                save_policy(out, learner, about)
    except KeyboardInterrupt:
        whole = False
    if not about:
        raise UserError("nothing was learnt in this time: give it more --seconds.")
    return about, whole
