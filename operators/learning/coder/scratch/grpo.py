"""Group-relative policy optimisation: several answers to each request, judged; better than the group's mean is good.

Advantages are (reward - mean) / deviation within a group (Shao et al. 2024, arXiv:2402.03300); the clipped objective is
averaged over tokens (Yu et al. 2025, arXiv:2503.14476), so that long answers count by their length; the k3 estimate of
the divergence from the supervised network holds it near. Groups without a difference teach nothing and are left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from evo_kernel.types import Strategy
from operators.learning.coder.rewards import Ask, Grade, RewardJudge, RewardParts, grades
from operators.learning.coder.scratch.network import CoderNetwork, padded, sample
from operators.learning.coder.scratch.training import CoderState, Tell, Trained, clipped_step, rate_at, request

SAMPLED_AT_ONCE = 256  # answers
RESAMPLED = 2000  # times, for the interval of a held-out rate


@dataclass(frozen=True)
class GrpoSettings:
    """`groups` requests a step, `answers` to each. `passes`: times that a step's answers are learnt from."""

    steps: int = 60
    groups: int = 12
    answers: int = 8
    temperature: float = 1.0
    most: int = 384  # tokens of an answer
    rate: float = 3e-5  # ten times as much took a network of a million parameters apart in eight steps
    warm_up: int = 3
    clip: float = 0.2
    divergence: float = 0.05  # weight of the k3 estimate
    passes: int = 2
    rows: int = 32  # answers in one backward pass
    every: int = 5  # steps between checkpoints
    seed: int = 0


def train(
    state: CoderState,
    reference: CoderNetwork,
    asks: Sequence[Ask],
    bench: RewardJudge,
    parts: RewardParts,
    settings: GrpoSettings,
    tell: Tell,
    keep: Callable[[], None],
    stop: Callable[[], bool],
) -> bool:
    """Goes on from `state.step`; whether it came to its end. `reference`: the supervised network, which stays."""
    while state.step < settings.steps and state.clock.share < 1.0:
        if stop():
            keep()
            return False
        rng = np.random.default_rng([settings.seed, 7, state.step])
        chosen = [asks[at] for at in rng.choice(len(asks), settings.groups, replace=len(asks) < settings.groups)]
        repeated = [ask for ask in chosen for _ in range(settings.answers)]
        began = time.monotonic()
        prompts, answers, said = answered(state.coder, repeated, settings, int(rng.integers(1 << 62)))
        written = time.monotonic()
        found = grades(repeated, said, bench, parts)
        took = {"writing_s": round(written - began, 2), "judging_s": round(time.monotonic() - written, 2)}
        share = max(state.step / settings.steps, state.clock.share)
        rate = rate_at(state.step, share, settings.rate, settings.warm_up, least=0.3)
        learnt = learn(state, reference, prompts, answers, advantages_of(found, settings.answers), settings, rate)
        state.step += 1
        said = {"stage": "grpo", "step": state.step, **summary(found), **learnt, **took}
        tell({**said, "seconds": round(state.clock.spent_s, 1)})
        if state.step % settings.every == 0:
            keep()
    keep()
    return True


def answered(
    coder: Trained, asks: Sequence[Ask], settings: GrpoSettings, seed: int
) -> tuple[list[tuple[int, ...]], list[list[int]], list[str]]:
    """Prompts, sampled answers and what these say, one for each ask; what does not fit the context is not answered."""
    made = {
        ask: request(coder.vocabulary, ask.strategy or Strategy("as-you-see-fit", "algorithm"), ask.parent)
        for ask in dict.fromkeys(asks)
    }
    asked = [made[ask] for ask in asks]
    prompts = [one.prompt for one in asked]
    generator = torch.Generator(coder.device).manual_seed(seed)
    answers: list[list[int]] = [[] for _ in asks]
    order = sorted(range(len(asks)), key=lambda at: len(prompts[at]))
    for at in range(0, len(order), SAMPLED_AT_ONCE):
        some = order[at : at + SAMPLED_AT_ONCE]
        asking = [prompts[one] for one in some]
        sampled = sample(coder.network, asking, settings.temperature, settings.most, generator)
        for one, answer in zip(some, sampled, strict=True):
            answers[one] = answer
    said = [one.read(coder.vocabulary, answer) for one, answer in zip(asked, answers, strict=True)]
    return prompts, answers, said


def evaluate(
    coder: Trained, asks: Sequence[Ask], bench: RewardJudge, parts: RewardParts, settings: GrpoSettings, samples: int
) -> dict[str, float]:
    """Shares of answers, drawn at the training's temperature; what could not be judged counts as wrong.

    `right`: Triton, right on every check case, by another plan than the parent's; `low` and `high`: its 95 % interval
    over requests. `likeliest`: the same of the answer that is likeliest. `any_right`: share of requests with a right
    answer among those drawn. `reward`: their mean. The same requests and seeds give the same answers of the same coder.
    """
    repeated = [ask for ask in asks for _ in range(samples)]
    *_, said = answered(coder, repeated, settings, seed=20_011)
    *_, greedy = answered(coder, asks, replace(settings, temperature=0.0), seed=0)
    found = grades([*repeated, *asks], [*said, *greedy], bench, parts)
    drawn, likeliest = found[: len(repeated)], found[len(repeated) :]
    right = np.array([one.right for one in drawn], dtype=float).reshape(len(asks), samples)
    rng = np.random.default_rng(0)
    means = right.mean(axis=1)[rng.integers(len(asks), size=(RESAMPLED, len(asks)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    shares = {
        "right": right.mean(), "low": low, "high": high, "likeliest": np.mean([one.right for one in likeliest]),
        "any_right": right.any(axis=1).mean(), "witnessed": np.mean([one.right and one.witnessed for one in drawn]),
        "reward": summary(drawn)["reward"],
    }  # fmt: skip
    return {name: float(share) for name, share in shares.items()} | {"requests": len(asks), "samples": samples}


def summary(found: Sequence[Grade]) -> dict[str, float]:
    """Means over what was judged: the reward, and the shares that are right, and right and witnessed."""
    judged = [one for one in found if not math.isnan(one.reward)]
    rows = [(one.reward, one.right, one.right and one.witnessed, one.status != "no edit") for one in judged]
    means = np.mean(np.array(rows, dtype=float), axis=0).tolist() if rows else [math.nan] * 4
    return dict(zip(("reward", "right", "witnessed", "edits"), means, strict=True), judged=len(judged) / len(found))


def advantages_of(found: Sequence[Grade], answers: int) -> Tensor:
    """(groups · answers,): 0 for what was not judged, and in groups without a difference."""
    rewards = np.array([one.reward for one in found]).reshape(-1, answers)
    advantages = np.zeros_like(rewards)
    for group, values in zip(advantages, rewards, strict=True):
        known = ~np.isnan(values)
        if known.sum() > 1 and values[known].std() > 1e-6:
            group[known] = (values[known] - values[known].mean()) / (values[known].std() + 1e-4)
    return torch.tensor(advantages.reshape(-1), dtype=torch.float32)


def learn(
    state: CoderState,
    reference: CoderNetwork,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    advantages: Tensor,
    settings: GrpoSettings,
    rate: float,
) -> dict[str, float]:
    network, device = state.coder.network, state.coder.device
    useful = [at for at in range(len(answers)) if float(advantages[at]) != 0.0 and answers[at]]
    useful.sort(key=lambda at: len(prompts[at]) + len(answers[at]))
    parts = [useful[at : at + settings.rows] for at in range(0, len(useful), settings.rows)]
    tokens = sum(len(answers[at]) for at in useful)
    if not parts:
        return {"divergence": 0.0, "learnt_from": 0.0}
    batches = [_Batch.of([prompts[at] for at in part], [answers[at] for at in part], device) for part in parts]
    with torch.no_grad():
        old = [one.chances(network) for one in batches]
        near = [one.chances(reference) for one in batches]
    divergence = 0.0
    for _ in range(settings.passes):
        divergence = 0.0
        for part, batch, before, anchor in zip(parts, batches, old, near, strict=True):
            now, good = batch.chances(network), advantages[part].to(device)[:, None]
            ratio = (now - before).exp()
            gain = torch.minimum(ratio * good, ratio.clamp(1 - settings.clip, 1 + settings.clip) * good)
            away = (anchor - now).exp() - (anchor - now) - 1
            loss = (-(gain - settings.divergence * away) * batch.said).sum() / tokens
            loss.backward()
            divergence += float((away.detach() * batch.said).sum()) / tokens
        clipped_step(network, state.optimiser, rate)
    return {"divergence": divergence, "learnt_from": len(useful) / len(answers)}


@dataclass(frozen=True)
class _Batch:
    """Prompts padded on the left, answers on the right. `said` (rows, longest answer): 1.0 where a token was said."""

    tokens: Tensor
    start: Tensor
    said: Tensor

    @staticmethod
    def of(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], device: torch.device) -> _Batch:
        (asked, start), (told, _) = padded(prompts, device, left=True), padded(answers, device, left=False)
        lengths = torch.tensor([[len(answer)] for answer in answers], device=device)
        said = (torch.arange(told.shape[1], device=device) < lengths).float()
        return _Batch(torch.cat((asked, told), dim=1), start, said)

    def chances(self, network: CoderNetwork) -> Tensor:
        """Log probabilities of the answers' tokens (rows, longest answer)."""
        with torch.autocast(self.tokens.device.type, torch.bfloat16, enabled=self.tokens.device.type == "cuda"):
            return network(self.tokens, self.start, self.said.shape[1]) * self.said
