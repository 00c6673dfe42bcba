"""Proximal policy optimisation on the replay of a tree: our own small loop, with MTMC's settings.

`walks` walks go on side by side, each over its own problem; after `rollout` steps of each, advantages are estimated
(GAE, Schulman et al. 2016) and the clipped objective (Schulman et al. 2017) is followed for a few passes, until the
policy has moved by `target_kl`. For the first `warm_up` steps only the critic learns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from operators.learning.imitation import FLOOR, TrainingReport
from operators.learning.network import Scorer
from operators.learning.policy_features import ActionOutcome, Observation, sight_of
from operators.learning.replay import TreeWalk
from operators.learning.tree import Tree
from operators.learning.values import Decisions, learnable


@dataclass(frozen=True)
class PpoSettings:
    """MTMC's numbers, but for the learning rates (`Scorer.policy_lr`, `value_lr`), `walks`, `passes` and `batch`, which
    its paper does not tell or which are ours. A step's reward is its log gain, so that returns are log gains."""

    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    target_kl: float = 0.02
    rollout: int = 4  # steps of each walk between updates
    warm_up: int = 512  # steps, over all walks, in which only the critic learns
    walks: int = 32
    passes: int = 4
    batch: int = 64


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

    @property
    def wanted(self) -> float:
        """Of the value: the lambda-return."""
        return self.advantage + self.value


class Walks:
    """Walks side by side; one that is over begins anew at a root drawn from all."""

    def __init__(self, tree: Tree, settings: PpoSettings, rng: np.random.Generator) -> None:
        self._tree, self._settings, self._rng = tree, settings, rng
        self._roots = [one.id for one in tree.roots() if tree.edges(one.id)]
        self._decisions = Decisions(tree, rng)
        self._walks = [self._begun() for _ in range(settings.walks)]
        self.returns: list[float] = []  # best log gain of walks that are over, since the last `gather`

    def gather(self, model: Scorer) -> list[list[Transition]]:
        """`rollout` steps of every walk: its moments in order, with their advantages."""
        self.returns = []
        moments: list[list[Transition]] = [[] for _ in self._walks]
        for _ in range(self._settings.rollout):
            sights = self._sights()
            scores, values = _seen(model, sights)
            for at, sight in enumerate(sights):
                moments[at].append(self._step(at, sight, scores[at, : len(sight.offered)], float(values[at])))
        _, after = _seen(model, self._sights())
        for row, value in zip(moments, after.tolist(), strict=True):
            self._credit(row, value)
        return moments

    def _step(self, at: int, sight: Observation, scores: Tensor, value: float) -> Transition:
        chances = scores.double().softmax(-1).numpy()
        chosen = int(self._rng.choice(len(chances), p=chances / chances.sum()))
        walk, _ = self._walks[at]
        taken = walk.take(sight.offered[chosen])
        if walk.over:
            self.returns.append(walk.best_gain)
            self._walks[at] = self._begun()
        return Transition(sight, chosen, float(np.log(chances[chosen])), value, taken.log_gain, walk.over)

    def _credit(self, row: Sequence[Transition], following: float) -> None:
        """Generalised advantage estimates; nothing is bootstrapped beyond the end of a walk: its horizon is its end."""
        carried = 0.0
        for moment in reversed(row):
            going = 0.0 if moment.over else 1.0
            error = moment.reward + self._settings.gamma * going * following - moment.value
            carried = error + self._settings.gamma * self._settings.lam * going * carried
            moment.advantage, following = carried, moment.value

    def _sights(self) -> list[Observation]:
        return [sight_of(walk.macro_state, walk.open_offers, earned) for walk, earned in self._walks]

    def _begun(self) -> tuple[TreeWalk, tuple[ActionOutcome, ...]]:
        root = self._roots[int(self._rng.integers(len(self._roots)))]
        return TreeWalk(self._tree, root), self._decisions.earned(self._tree.states[root].task)


def ppo(model: Scorer, tree: Tree, settings: PpoSettings, rng: np.random.Generator) -> Iterator[TrainingReport]:
    """One rollout and its update a `next()`. Raises ValueError where no state of the tree has a known action."""
    learnable(tree)
    critic = {id(parameter) for parameter in model.critic_parameters()}
    every = [parameter for parameter in model.parameters() if parameter.requires_grad]
    policy = torch.optim.Adam([one for one in every if id(one) not in critic], model.policy_lr)
    value = torch.optim.Adam(model.critic_parameters(), model.value_lr)
    walks, step, decisions = Walks(tree, settings, rng), 0, 0
    while True:
        rows = walks.gather(model.eval())  # no dropout: old and new chances must be those of one function
        moments = [moment for row in rows for moment in row]
        decisions += len(moments)
        warm = decisions > settings.warm_up
        numbers = _update(model, moments, settings, rng, [value, policy] if warm else [value])
        step += 1
        gains = {"reward": float(np.mean(walks.returns))} if walks.returns else {}
        yield TrainingReport(step, decisions, {**numbers, **gains})


def _update(
    model: Scorer,
    moments: Sequence[Transition],
    settings: PpoSettings,
    rng: np.random.Generator,
    optimisers: Sequence[torch.optim.Optimizer],
) -> dict[str, float]:
    advantages = np.array([moment.advantage for moment in moments])
    centre, spread = advantages.mean(), advantages.std() + 1e-6
    told: dict[str, float] = {}
    for _ in range(settings.passes):
        order = rng.permutation(len(moments))
        for start in range(0, len(moments), settings.batch):
            part = [moments[at] for at in order[start : start + settings.batch]]
            loss, told = _objective(model, part, settings, float(centre), float(spread))
            if told["kl"] > settings.target_kl and len(optimisers) > 1:
                return told
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimiser in optimisers:
                optimiser.step()
    return told


def _objective(
    model: Scorer, part: Sequence[Transition], settings: PpoSettings, centre: float, spread: float
) -> tuple[Tensor, dict[str, float]]:
    scores, values = model([moment.sight for moment in part])
    logs = scores.log_softmax(-1).clamp(min=FLOOR)
    chosen = torch.tensor([moment.chosen for moment in part], device=logs.device)
    taken = logs.gather(1, chosen[:, None])[:, 0]
    before = torch.tensor([moment.log_chance for moment in part]).to(taken)
    advantage = torch.tensor([(moment.advantage - centre) / spread for moment in part]).to(taken)
    ratio = (taken - before).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    policy = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    entropy = -(logs.exp() * logs).sum(-1).mean()
    critic = smooth_l1_loss(values, torch.tensor([moment.wanted for moment in part]).to(values))
    moved = (ratio - 1 - (taken - before)).mean().item()  # an estimate of KL(old, new) that is never negative
    told = {"loss": policy.item(), "critic": critic.item(), "entropy": entropy.item(), "kl": moved}
    return policy - settings.entropy * entropy + critic, told


def _seen(model: Scorer, sights: Sequence[Observation]) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        scores, values = model(sights)
    return scores.cpu(), values.cpu()
