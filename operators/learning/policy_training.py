"""Training of a policy on a tree of transitions: by imitation of its best actions, or by PPO.

Imitation: scores are to say Q / UNIT, with Q of the tree itself, known by dynamic programming. The losses are a
regression on them, and the cross-entropy of their softmax, which tells the best apart.

PPO (proximal policy optimisation, Schulman et al. 2017): WALKS walks go on side by side, each over its own problem.
After ROLLOUT steps of each, advantages are estimated (GAE, Schulman et al. 2016) and the clipped objective is followed
for PASSES passes, until the policy has moved by TARGET_KL.
A step's reward is its log gain. Constants are MTMC's (QiMeng-Kernel), but for learning rates, walks, passes and batch,
which its paper does not tell.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from torch.nn.utils.rnn import pad_sequence

from evo_kernel.errors import UserError
from operators.learning import language_model
from operators.learning.language_model import LanguagePolicy
from operators.learning.network import OfferScorer, PolicyNetwork, load_policy, save_policy
from operators.learning.policy_features import UNIT, ActionOutcome, Observation, sight_of
from operators.learning.tree import HORIZON, Tree, TreeState
from operators.learning.values import Decisions, Values, learnable, parted, shortfall
from operators.learning.walk import TreeWalk
from operators.macro.catalogue import STOP

GAMMA, LAMBDA, CLIP, ENTROPY, TARGET_KL = 0.99, 0.95, 0.2, 0.01, 0.02
POLICY_RATE, VALUE_RATE = 3e-4, 1e-3
ROLLOUT, WALKS, PASSES, PPO_BATCH = 4, 32, 4, 64
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

    def gather(self, model: OfferScorer) -> list[Transition]:
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

    def _seen(self, model: OfferScorer) -> tuple[list[Observation], Tensor, Tensor]:
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
    model: OfferScorer,
    tree: Tree,
    rng: np.random.Generator,
    left: Callable[[], float] = lambda: 1.0,
    rate: float = POLICY_RATE,
    warm_up: int = WARM_UP,
    walks: int = WALKS,
    batch: int = PPO_BATCH,
) -> Iterator[tuple[float, float]]:
    """One rollout and its update a `next()`, without end: the mean return of walks that ended, negated, and the
    critic's loss. `left` is not used: the rates are small, and stay.

    Raises ValueError where no state of the tree has a known action.
    """
    learnable(tree)
    critic = list(model.value.parameters())
    others = [one for one in model.parameters() if all(one is not mine for mine in critic)]
    value, policy = torch.optim.Adam(critic, VALUE_RATE), torch.optim.Adam(others, rate)
    going, decisions, earned = Walks(tree, rng, walks), 0, 0.0
    while True:
        moments = going.gather(model.eval())  # no dropout: old and new chances must be those of one function
        decisions += len(moments)
        loss = _update(model, moments, rng, [value, policy] if decisions > warm_up else [value], batch)
        if going.returns:
            earned = float(np.mean(going.returns))
            going.returns.clear()
        yield -earned, loss


def _update(
    model: OfferScorer, moments: Sequence[Transition], rng: np.random.Generator,
    optimisers: Sequence[torch.optim.Optimizer], batch: int,
) -> float:  # fmt: skip
    """The critic's last loss."""
    advantages = np.array([one.advantage for one in moments])
    centre, spread, critic = float(advantages.mean()), float(advantages.std()) + 1e-6, 0.0
    for _ in range(PASSES):
        order = rng.permutation(len(moments))
        for start in range(0, len(moments), batch):
            part = [moments[at] for at in order[start : start + batch]]
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
    model: OfferScorer, part: Sequence[Transition], centre: float, spread: float
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


LEARNING_RATE, LEAST_LEARNING_RATE = 1e-3, 1e-5
WEIGHT_DECAY = 0.05
BATCH = 32  # decisions in a step
REGRESSION, RANKING = 10.0, 0.1  # weights of the two losses
NEAR = 0.1  # errors of the regression count by their square up to this log gain
TELL_EVERY_S, TELLING = 20.0, 0.2  # at most this share of the time is spent on the tasks kept back


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
    model: OfferScorer, tree: Tree, seconds: float, seed: int, known: float, method: Method
) -> Iterator[Progress]:
    """Learns from the training tasks for `seconds`. `known`: the best shortfall before."""
    learnt, kept_back = parted(tree)
    judge = kept_back if kept_back.transitions else learnt
    torch.manual_seed(seed)
    started = told = time.monotonic()
    pause = TELL_EVERY_S

    def left() -> float:
        return 1.0 - (time.monotonic() - started) / seconds if seconds else 0.0

    steps = method(model.train(), learnt, np.random.default_rng(seed), left)
    for step, (loss, critic) in enumerate(steps, start=1):
        now = time.monotonic()
        over = now - started >= seconds
        if now - told < pause and not over:
            continue
        found = shortfall(model.eval(), judge)
        model.train()
        yield Progress(now - started, step, loss, critic, found, found < known)
        known, told = min(known, found), time.monotonic()
        pause = max(TELL_EVERY_S, (told - now) / TELLING)
        if over:
            return


def imitate(
    model: OfferScorer,
    tree: Tree,
    rng: np.random.Generator,
    left: Callable[[], float] = lambda: 1.0,
    rate: float = LEARNING_RATE,
    batch: int = BATCH,
    regression: float = REGRESSION,
) -> Iterator[tuple[float, float]]:
    """One gradient step a `next()`, without end: the losses of scores and critic. `left`: the share of the time that is
    left, by which the learning rate falls. `regression`: 0 where only differences of scores mean something.

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
        loss = regression * smooth_l1_loss((UNIT * scores)[there], known, beta=NEAR) + RANKING * ranking
        critic = smooth_l1_loss(found, torch.stack([q.max() for q in worth]).to(found))
        for group in optimiser.param_groups:
            group["lr"] = max(rate * left(), LEAST_LEARNING_RATE)
        optimiser.zero_grad()
        (loss + critic).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        yield loss.item(), critic.item()


Method = Callable[..., Iterator[tuple[float, float]]]
"""Of a model, a tree, a generator and the share of the time that is left: a step of learning a `next()`, which tells
the losses of policy and critic."""
METHODS: Mapping[str, Method] = {"imitation": imitate, "ppo": ppo}


LANGUAGE: Mapping[str, Mapping[str, float]] = {
    "imitation": {"rate": 3e-4, "regression": 0.0},  # a likelihood has no absolute meaning
    "ppo": {"rate": 3e-5},
}
"""What other settings language models have: of adapters of rank 16."""
CPU_BATCH = 4


@dataclass(frozen=True)
class Training:
    """`model`: a language model's name or path, None for the small transformer or the one at `out`. `rate`: of the
    policy; `batch`: decisions in a gradient step, and walks of PPO; None: the method's own."""

    method: str
    seconds: float
    seed: int
    device: str
    model: str | None = None
    rate: float | None = None
    batch: int | None = None

    def learning(self, language: bool) -> Method:
        settings = dict(LANGUAGE[self.method]) if language else {}
        batch = self.batch or (CPU_BATCH if language and self.device == "cpu" else None)
        settings |= {} if self.rate is None else {"rate": self.rate}
        settings |= {} if batch is None else {"batch": batch}
        settings |= {"walks": batch} if batch is not None and self.method == "ppo" else {}
        return partial(METHODS[self.method], **settings)


def train_policy(
    path: Path, out: Path, how: Training, resume: bool, tell: Callable[[Mapping[str, Any]], None]
) -> tuple[dict[str, Any], bool]:
    """Train on the tree at `path`: what the checkpoint at `out` says of itself, and whether nothing interrupted it.

    `tell` gets each word of progress. KeyboardInterrupt ends it as the time does. `resume`: go on from the checkpoint.
    A language model's is a folder, and goes on from its latest weights. Raises UserError.
    """
    if out.exists() and not resume:
        raise UserError(f"{out} is there already: --resume goes on with it, or name another file.")
    tree = Tree.load(path)
    torch.manual_seed(how.seed)
    learner, about, save = _opened(out, how.model)
    learner.to(how.device)
    if isinstance(learner, LanguagePolicy) and how.device == "cuda":
        torch.set_float32_matmul_precision("high")
    known, past = float(about.get("shortfall", math.inf)), float(about.get("seconds", 0.0))
    kinds = sorted({one.label for one in tree.environments.values()})
    origin = {
        "method": how.method, "seed": how.seed, "tree": path.name, "plans": tree.plans,
        "environments": ", ".join(kinds),
    }  # fmt: skip
    whole, method = True, how.learning(isinstance(learner, LanguagePolicy))
    try:
        for progress in training(learner, tree, how.seconds, how.seed, known, method):
            numbers = {name: round(getattr(progress, name), 5) for name in ("shortfall", "loss", "critic")}
            last = {"seconds": round(past + progress.seconds, 1), "step": progress.step, **numbers}
            tell(last)
            if progress.best:
                about = {**last, **origin}
            save(about if progress.best else None, {**last, **origin})
    except KeyboardInterrupt:
        whole = False
    if not about:
        raise UserError("nothing was learnt in this time: give it more --seconds.")
    return about, whole


Save = Callable[[Mapping[str, Any] | None, Mapping[str, Any]], None]
"""Gets what is told about the best weights where they are these, and about these."""


def _opened(out: Path, model: str | None) -> tuple[OfferScorer, dict[str, Any], Save]:
    """What learns, what is told about it, and how it is kept."""
    if model is None and not out.is_dir():
        learner, about = load_policy(out) if out.exists() else (PolicyNetwork(), {})

        def save(best: Mapping[str, Any] | None, _: Mapping[str, Any]) -> None:
            if best is not None:
                save_policy(out, learner, best)

        return learner, about, save
    if out.exists():
        speaker, about = language_model.load_policy(out, last=True)
        if model is not None and language_model.placed(model) != speaker.name:
            raise UserError(f"{out} adapts {speaker.name}, not {model}: leave --model out, or name another folder.")
    else:
        speaker, about = language_model.new_policy(str(model), out), {}

    def save_both(best: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
        language_model.save_policy(out / language_model.LAST, speaker, now)
        if best is not None:
            language_model.save_policy(out, speaker, best)

    return speaker, about, save_both
