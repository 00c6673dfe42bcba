"""Proximal policy optimisation (Schulman et al. 2017) of the policy network on walks over a tree of transitions.

WALKS walks go on side by side, each over its own problem. After ROLLOUT steps of each, advantages are estimated (GAE,
Schulman et al. 2016) and the clipped objective is followed for PASSES passes, until the policy has moved by TARGET_KL.
A step's reward is its log gain. Constants are MTMC's (QiMeng-Kernel), but for learning rates, walks, passes and batch,
which its paper does not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from operators.learning.network import PolicyNetwork
from operators.learning.policy_features import ActionOutcome, Observation, sight_of
from operators.learning.replay import TreeWalk
from operators.learning.tree import HORIZON, Tree
from operators.learning.values import Decisions, learnable
from operators.macro.catalogue import STOP

GAMMA, LAMBDA, CLIP, ENTROPY, TARGET_KL = 0.99, 0.95, 0.2, 0.01, 0.02
POLICY_RATE, VALUE_RATE = 3e-4, 1e-3
ROLLOUT, WALKS, PASSES, BATCH = 4, 32, 4, 64
WARM_UP = 512  # decisions, over all walks, in which only the critic learns
FLOOR = -1e4  # stands for minus infinity in products with zero


@dataclass
class Transition:
    """One decision of one walk, and what came of it."""

    sight: Observation
    chosen: int
    log_chance: float
    value: float
    reward: float
    over: bool  # the walk ended here
    advantage: float = 0.0


class Walks:
    """Walks side by side; one that is over begins anew at a root drawn from all."""

    def __init__(self, tree: Tree, rng: np.random.Generator, count: int = WALKS) -> None:
        self._tree, self._rng = tree, rng
        self._roots = [one.id for one in tree.roots() if tree.edges(one.id)]
        self._decisions = Decisions(tree, rng)
        self._walks = [self._begun() for _ in range(count)]
        self.returns: list[float] = []  # best log gain of each walk that is over

    def gather(self, model: PolicyNetwork) -> list[Transition]:
        """ROLLOUT steps of every walk, with their advantages."""
        rows: list[list[Transition]] = [[] for _ in self._walks]
        for _ in range(ROLLOUT):
            sights, scores, values = self._seen(model)
            for at, sight in enumerate(sights):
                rows[at].append(self._step(at, sight, scores[at, : len(sight.offered)], float(values[at])))
        _, _, after = self._seen(model)
        for row, value in zip(rows, after.tolist(), strict=True):
            credit(row, value)
        return [one for row in rows for one in row]

    def _seen(self, model: PolicyNetwork) -> tuple[list[Observation], Tensor, Tensor]:
        sights = [sight_of(walk.macro_state, (*walk.offers, STOP), earned) for walk, earned in self._walks]
        with torch.no_grad():
            scores, values = model(sights)
        return sights, scores.cpu(), values.cpu()

    def _step(self, at: int, sight: Observation, scores: Tensor, value: float) -> Transition:
        chances = scores.double().softmax(-1).numpy()
        chosen = int(self._rng.choice(len(chances), p=chances / chances.sum()))
        walk, _ = self._walks[at]
        edge = None if sight.offered[chosen] == STOP else walk.take(sight.offered[chosen])
        over = edge is None or walk.steps >= HORIZON
        if over:
            self.returns.append(walk.best_gain)
            self._walks[at] = self._begun()
        reward = edge.log_gain if edge is not None and edge.child is not None else 0.0
        return Transition(sight, chosen, float(np.log(chances[chosen])), value, reward, over)

    def _begun(self) -> tuple[TreeWalk, tuple[ActionOutcome, ...]]:
        root = self._roots[int(self._rng.integers(len(self._roots)))]
        return TreeWalk(self._tree, root), self._decisions.earned(self._tree.states[root].task)


def credit(row: Sequence[Transition], following: float) -> None:
    """Generalised advantage estimates of a walk's transitions; `following`: the value behind the last of them.

    Nothing is bootstrapped beyond the end of a walk: its horizon is its end.
    """
    carried = 0.0
    for one in reversed(row):
        going = 0.0 if one.over else 1.0
        carried = one.reward + GAMMA * going * following - one.value + GAMMA * LAMBDA * going * carried
        one.advantage, following = carried, one.value


def ppo(
    model: PolicyNetwork,
    tree: Tree,
    rng: np.random.Generator,
    left: Callable[[], float] = lambda: 1.0,
    rate: float = POLICY_RATE,
    warm_up: int = WARM_UP,
) -> Iterator[tuple[float, float]]:
    """One rollout and its update a `next()`, without end: the mean return of walks that ended, negated, and the
    critic's loss. `left` is not used: the rates are small, and stay.

    Raises ValueError where no state of the tree has a known action.
    """
    learnable(tree)
    critic = list(model.value.parameters())
    others = [one for one in model.parameters() if all(one is not mine for mine in critic)]
    value, policy = torch.optim.Adam(critic, VALUE_RATE), torch.optim.Adam(others, rate)
    walks, decisions, earned = Walks(tree, rng), 0, 0.0
    while True:
        moments = walks.gather(model.eval())  # no dropout: old and new chances must be those of one function
        decisions += len(moments)
        loss = _update(model, moments, rng, [value, policy] if decisions > warm_up else [value])
        if walks.returns:
            earned = float(np.mean(walks.returns))
            walks.returns.clear()
        yield -earned, loss


def _update(
    model: PolicyNetwork, moments: Sequence[Transition], rng: np.random.Generator,
    optimisers: Sequence[torch.optim.Optimizer],
) -> float:  # fmt: skip
    """The critic's last loss."""
    advantages = np.array([one.advantage for one in moments])
    centre, spread, critic = float(advantages.mean()), float(advantages.std()) + 1e-6, 0.0
    for _ in range(PASSES):
        order = rng.permutation(len(moments))
        for start in range(0, len(moments), BATCH):
            part = [moments[at] for at in order[start : start + BATCH]]
            loss, critic, moved = _objective(model, part, centre, spread)
            if moved > TARGET_KL and len(optimisers) > 1:
                return critic
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimiser in optimisers:
                optimiser.step()
    return critic


def _objective(
    model: PolicyNetwork, part: Sequence[Transition], centre: float, spread: float
) -> tuple[Tensor, float, float]:
    """The loss, the critic's part of it, and an estimate of KL(old, new) that is never negative."""
    scores, values = model([one.sight for one in part])
    logs = scores.log_softmax(-1).clamp(min=FLOOR)
    chosen = torch.tensor([one.chosen for one in part], device=logs.device)
    taken = logs.gather(1, chosen[:, None])[:, 0]
    before = torch.tensor([one.log_chance for one in part]).to(taken)
    advantage = torch.tensor([(one.advantage - centre) / spread for one in part]).to(taken)
    ratio = (taken - before).exp()
    policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
    entropy = -(logs.exp() * logs).sum(-1).mean()
    critic = smooth_l1_loss(values, torch.tensor([one.advantage + one.value for one in part]).to(values))
    moved = (ratio - 1 - (taken - before)).mean().item()
    return policy - ENTROPY * entropy + critic, critic.item(), moved
