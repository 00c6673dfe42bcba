"""Imitation of a tree's best actions: learning from stored transitions alone.

Scores are to say Q / temperature, with Q of the tree itself, known by dynamic programming: a regression on them, and
the cross-entropy of their softmax, which tells the best apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from torch.nn.utils.rnn import pad_sequence

from operators.learning.network import Scorer
from operators.learning.policy_features import UNIT
from operators.learning.tree import Tree, TreeState
from operators.learning.values import Decisions, Values, learnable

FLOOR = -1e4  # stands for minus infinity in products with zero
LEAST_LR = 1e-5
Left = Callable[[], float]


@dataclass(frozen=True)
class OfflineSettings:
    """`temperature`: of Q, in log gain. `regression`, `ranking`: what the two losses of imitation
    count for; errors of a regression count by their square up to `near`, in log gain."""

    lr: float = 1e-3
    batch: int = 32
    temperature: float = UNIT
    regression: float = 10.0
    ranking: float = 0.1
    near: float = 0.1
    discount: float = 0.9
    failure: float = 0.05  # what a step that fails costs, in log gain
    weight_decay: float = 0.05


@dataclass(frozen=True)
class TrainingReport:
    """What one step of learning did. `decisions`: seen so far; `numbers`: losses and the like, by name."""

    step: int
    decisions: int
    numbers: Mapping[str, float]


def imitate(
    model: Scorer, tree: Tree, settings: OfflineSettings, rng: np.random.Generator, left: Left = lambda: 1.0
) -> Iterator[TrainingReport]:
    """One gradient step a `next()`, without end. `left`: the share of the time that is left, by which the learning rate
    falls.

    Raises ValueError where no state of the tree has a known action.
    """
    states, values = _Evenly(tree), Values(tree, settings.discount, settings.failure)
    decisions, optimiser = Decisions(tree, rng), _optimiser(model, settings)
    step = 0
    while True:
        batch = states.drawn(settings.batch, rng)
        sights = [decisions.at(state) for state in batch]
        worth = [torch.tensor(values.offers(state, sight)) for state, sight in zip(batch, sights, strict=True)]
        scores, found = model(sights)
        wanted = pad_sequence([(q / settings.temperature).softmax(0) for q in worth], batch_first=True).to(scores)
        loss = -(wanted * scores.log_softmax(-1).clamp(min=FLOOR)).sum(-1).mean()
        if model.free_scores:
            there = scores.isfinite()
            told = (settings.temperature * scores)[there]
            off = smooth_l1_loss(told, pad_sequence(worth, batch_first=True).to(scores)[there], beta=settings.near)
            loss = settings.regression * off + settings.ranking * loss
        critic = smooth_l1_loss(found, torch.stack([q.max() for q in worth]).to(found))
        _descend(optimiser, loss + critic, model, settings.lr * left())
        step += 1
        yield TrainingReport(step, step * settings.batch, {"loss": loss.item(), "critic": critic.item()})


class _Evenly:
    """States with known actions, of which every task gives as many: some tasks have a hundred times as many states as
    others, for their kernels compile faster."""

    def __init__(self, tree: Tree) -> None:
        """Raises ValueError where there is none."""
        tasks: dict[str, list[TreeState]] = {}
        for state in learnable(tree):
            tasks.setdefault(tree.problems[state.task].task, []).append(state)
        self._tasks = [tasks[name] for name in sorted(tasks)]

    def drawn(self, count: int, rng: np.random.Generator) -> list[TreeState]:
        chosen = [self._tasks[at] for at in rng.integers(0, len(self._tasks), count)]
        return [states[int(rng.integers(0, len(states)))] for states in chosen]


def _optimiser(model: Scorer, settings: OfflineSettings) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, settings.lr, weight_decay=settings.weight_decay)


def _descend(optimiser: torch.optim.Optimizer, loss: Tensor, model: Scorer, lr: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = max(lr, LEAST_LR)
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
