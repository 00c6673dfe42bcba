"""Learning from stored transitions alone: imitation of the tree's best actions, and advantage-weighted regression.

Both take one gradient step a `next()` and never end by themselves: the caller stops when its time is up.

    imitate    cross-entropy to softmax(Q / temperature), with Q of the tree itself, known by dynamic programming
    weighted   regression on what was stored, weighted by exp(advantage / temperature); a learnt critic tells the
               advantage (Peng et al. 2019, one-step returns), so nothing beyond single transitions is used

Q(s, a) = log gain + discount · V(child), V(s) = max(0, max Q): staying is always possible. The discount makes earlier
gains worth more; without it a useless step costs nothing as long as enough steps are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from evo_kernel.types import Status, Tried
from operators.learning.network import Network
from operators.learning.sight import Sight, sight_of
from operators.learning.tree import HORIZON, Edge, State, Tree
from operators.macro.catalogue import STOP

FLOOR = -1e4  # stands for minus infinity in products with zero


@dataclass(frozen=True)
class OfflineSettings:
    """`temperature`: of Q or the advantage, in log gain. `hidden`: the largest share of a state's known actions that an
    example counts as tried already, so that the policy learns to go on from what failed."""

    lr: float = 1e-3
    batch: int = 32
    temperature: float = 0.05
    discount: float = 0.9
    failure: float = 0.05  # what a step that fails costs, in log gain
    hidden: float = 0.5
    weight_decay: float = 0.01
    limit: float = 20.0  # of an exponential weight


@dataclass
class Values:
    """Discounted values of a tree, by state and steps left."""

    tree: Tree
    settings: OfflineSettings
    _known: dict[tuple[str, int], float] = field(default_factory=dict)

    def state(self, name: str, steps: int) -> float:
        if steps <= 0:
            return 0.0
        key = (name, steps)
        if key not in self._known:
            self._known[key] = 0.0  # a circle gains nothing
            found = [self.action(edge, steps) for edge in self.tree.edges(name).values()]
            self._known[key] = max(0.0, max(found, default=0.0))
        return self._known[key]

    def action(self, edge: Edge, steps: int) -> float:
        if edge.child is None or edge.child == edge.parent:
            return -self.settings.failure
        return edge.log_gain + self.settings.discount * self.state(edge.child, steps - 1)


@dataclass(frozen=True)
class Report:
    """What one step of learning did. `numbers`: losses and the like, by name."""

    step: int
    numbers: Mapping[str, float]


def example(tree: Tree, state: State, rng: np.random.Generator, hidden: float) -> Sight:
    """A decision at a stored state: some of its known actions tried already, the others and STOP offered."""
    offered = tree.offered(state.id)
    order = rng.permutation(len(offered))
    count = int(rng.integers(0, int(hidden * len(offered)) + 1)) if rng.random() < 0.5 else 0
    edges = tree.edges(state.id)
    tried = tuple(
        Tried(offered[at], edges[offered[at].key].status, edges[offered[at].key].log_gain) for at in order[:count]
    )
    left = tuple(offered[at] for at in sorted(order[count:]))
    return sight_of(replace(tree.macro_state(state.id), tried=tried), (*left, STOP))


def imitate(model: Network, tree: Tree, settings: OfflineSettings, rng: np.random.Generator) -> Iterator[Report]:
    """Raises ValueError where no state of the tree has a known action."""
    states, values = _learnable(tree), Values(tree, settings)
    optimiser = torch.optim.AdamW(model.parameters(), settings.lr, weight_decay=settings.weight_decay)
    step = 0
    while True:
        drawn = [states[at] for at in rng.integers(0, len(states), settings.batch)]
        sights = [example(tree, state, rng, settings.hidden) for state in drawn]
        targets = [target(values, state, sight) for state, sight in zip(drawn, sights, strict=True)]
        scores, found = model(sights)
        wanted = torch.nn.utils.rnn.pad_sequence([t.softmax(0) for t in targets], batch_first=True).to(scores)
        logs = scores.log_softmax(-1).clamp(min=FLOOR)
        loss = -(wanted * logs).sum(-1).mean()
        best = torch.stack([t.max() for t in targets]).to(found) * settings.temperature
        critic = torch.nn.functional.smooth_l1_loss(found, best)
        _descend(optimiser, loss + critic, model)
        step += 1
        yield Report(step, {"loss": loss.item(), "value error": critic.item()})


def target(values: Values, state: State, sight: Sight) -> Tensor:
    """Q / temperature of each offer, [offers]; STOP is worth 0."""
    edges, steps = values.tree.edges(state.id), max(HORIZON - len(state.path), 1)
    found = [0.0 if one == STOP else values.action(edges[one.key], steps) for one in sight.offered]
    return torch.tensor(found) / values.settings.temperature


def weighted(model: Network, tree: Tree, settings: OfflineSettings, rng: np.random.Generator) -> Iterator[Report]:
    """Raises ValueError where no state of the tree has a known action."""
    states = _learnable(tree)
    optimiser = torch.optim.AdamW(model.parameters(), settings.lr, weight_decay=settings.weight_decay)
    step = 0
    while True:
        drawn = [states[at] for at in rng.integers(0, len(states), settings.batch)]
        sights = [example(tree, state, rng, settings.hidden) for state in drawn]
        chosen = torch.tensor([int(rng.integers(0, len(sight.offered))) for sight in sights])
        rewards, after = _outcomes(tree, settings, drawn, sights, chosen.tolist())
        scores, found = model(sights)
        chosen = chosen.to(scores.device)
        with torch.no_grad():
            following = [sight for sight in after if sight is not None]
            later = torch.zeros_like(found)
            if following:
                later[[at for at, sight in enumerate(after) if sight is not None]] = model(following)[1]
            returns = rewards.to(found) + settings.discount * later
            weights = ((returns - found) / settings.temperature).exp().clamp(max=settings.limit)
        logs = scores.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        loss = -(weights * logs).mean() / weights.mean().clamp(min=1e-3)
        critic = torch.nn.functional.smooth_l1_loss(found, returns)
        _descend(optimiser, loss + critic, model)
        step += 1
        yield Report(step, {"loss": loss.item(), "value error": critic.item()})


def _outcomes(
    tree: Tree, settings: OfflineSettings, states: list[State], sights: list[Sight], chosen: list[int]
) -> tuple[Tensor, list[Sight | None]]:
    """Rewards [B], and what is seen afterwards; None where the episode ends or the state stays."""
    rewards, after = [], []
    for state, sight, at in zip(states, sights, chosen, strict=True):
        strategy = sight.offered[at]
        edge = None if strategy == STOP else tree.edges(state.id)[strategy.key]
        child = edge.child if edge else None
        passed = edge is not None and edge.status is Status.PASSED
        rewards.append(0.0 if edge is None else edge.log_gain if passed else -settings.failure)
        known = child is not None and bool(tree.edges(child))
        after.append(sight_of(tree.macro_state(child), (*tree.offered(child), STOP)) if known and child else None)
    return torch.tensor(rewards), after


def _learnable(tree: Tree) -> list[State]:
    found = [state for state in tree.states.values() if tree.edges(state.id)]
    if not found:
        raise ValueError("no state of the tree has a known action: collect a larger one")
    return sorted(found, key=lambda state: state.id)


def _descend(optimiser: torch.optim.Optimizer, loss: Tensor, model: Network) -> None:
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
