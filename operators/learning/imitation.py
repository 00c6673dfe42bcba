"""Training of a policy by imitation of a tree's best actions, from stored transitions alone.

Scores are to say Q / UNIT, with Q of the tree itself, known by dynamic programming: a regression on them, and the
cross-entropy of their softmax, which tells the best apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import smooth_l1_loss
from torch.nn.utils.rnn import pad_sequence

from operators.learning.network import PolicyNetwork
from operators.learning.policy_features import UNIT
from operators.learning.ppo import FLOOR, ppo
from operators.learning.tree import Tree, TreeState
from operators.learning.values import Decisions, Values, learnable, parted, shortfall

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
    model: PolicyNetwork, tree: Tree, seconds: float, seed: int, known: float = math.inf, method: str = "imitation"
) -> Iterator[Progress]:
    """Learns from the training tasks for `seconds` by one of METHODS. `known`: the best shortfall before."""
    learnt, kept_back = parted(tree)
    judge = kept_back if kept_back.transitions else learnt
    torch.manual_seed(seed)
    started = told = time.monotonic()

    def left() -> float:
        return 1.0 - (time.monotonic() - started) / seconds if seconds else 0.0

    steps = METHODS[method](model.train(), learnt, np.random.default_rng(seed), left)
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
    states, values, decisions = _by_task(tree), Values(tree), Decisions(tree, rng)
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


def _by_task(tree: Tree) -> list[list[TreeState]]:
    """States with known actions, task by task. Every task gives as many: some have a hundred times as many states as
    others, for their kernels compile faster."""
    tasks: dict[str, list[TreeState]] = {}
    for state in learnable(tree):
        tasks.setdefault(tree.problems[state.task].task, []).append(state)
    return [tasks[name] for name in sorted(tasks)]


METHODS: Mapping[str, Callable[..., Iterator[tuple[float, float]]]] = {"imitation": imitate, "ppo": ppo}
"""Each takes a step of learning a `next()`, and tells the losses of policy and critic."""
