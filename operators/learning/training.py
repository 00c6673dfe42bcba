"""The loop around every way of learning: time, progress, validation, the best checkpoint.

    for progress in training(model, tree, method, settings): ...     # save when progress.best

Every method is a generator that takes one step of learning a `next()`, so it can be interrupted anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from operators.learning.imitation import Left, OfflineSettings, TrainingReport, imitate
from operators.learning.network import Scorer
from operators.learning.ppo import PpoSettings, ppo
from operators.learning.tree import Tree
from operators.learning.values import parted, shortfall

Method = Callable[[Scorer, Tree, np.random.Generator, Left], Iterator[TrainingReport]]


def _imitation(model: Scorer, tree: Tree, rng: np.random.Generator, left: Left) -> Iterator[TrainingReport]:
    """With the model's own rate and batch."""
    return imitate(model, tree, OfflineSettings(lr=model.offline_lr, batch=model.batch), rng, left)


def _ppo(model: Scorer, tree: Tree, rng: np.random.Generator, left: Left) -> Iterator[TrainingReport]:
    """Its learning rate is small, and stays."""
    return ppo(model, tree, PpoSettings(walks=model.batch, batch=2 * model.batch), rng)


METHODS: Mapping[str, Method] = {"imitation": _imitation, "ppo": _ppo}


@dataclass(frozen=True)
class Progress:
    """After some seconds of learning. `shortfall`: of the tasks kept back, in log gain; lower is better, see values."""

    seconds: float
    report: TrainingReport
    shortfall: float
    best: bool  # so far: worth keeping


def training(
    model: Scorer, tree: Tree, method: Method, seconds: float, seed: int, every_s: float = 20.0, known: float = np.inf
) -> Iterator[Progress]:
    """Learns from the training tasks for `seconds`, telling every `every_s`. `known`: the best shortfall before."""
    learnt, kept_back = parted(tree)
    judge = kept_back if kept_back.transitions else learnt
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    started = told = time.monotonic()

    def left() -> float:
        return 1.0 - (time.monotonic() - started) / seconds if seconds else 0.0

    for report in method(model.train(), learnt, rng, left):
        now = time.monotonic()
        over = now - started >= seconds
        if now - told < every_s and not over:
            continue
        found = shortfall(model.eval(), judge)
        model.train()
        yield Progress(now - started, report, found, found < known)
        known, told = min(known, found), time.monotonic()
        if over:
            return
