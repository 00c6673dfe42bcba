"""Supervised training: the edit, given strategy and source. Batches follow from the seed and the step alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from operators.learning.coder.scratch.network import CoderNetwork
from operators.learning.coder.scratch.prompts import PromptLesson
from operators.learning.coder.scratch.sampling import padded, sample
from operators.learning.coder.scratch.training import CoderState, Tell, clipped_step, rate_at
from operators.learning.coder.scratch.vocabulary import Vocabulary

POOL = 4  # batches that are drawn at once and sorted by length, so that little is padding


@dataclass(frozen=True)
class SftSettings:
    """`prompt_weight`: of the loss on what is asked, beside 1 on the answer: it teaches to read."""

    steps: int = 3000
    batch: int = 48
    rate: float = 1e-3
    warm_up: int = 100
    prompt_weight: float = 0.3
    every: int = 100  # steps between words, and between checkpoints
    watched: int = 64  # held-out lessons whose answers are compared word by word
    seed: int = 0


def train(
    state: CoderState,
    lessons: Sequence[PromptLesson],
    held_out: Sequence[PromptLesson],
    settings: SftSettings,
    tell: Tell,
    keep: Callable[[], None],
    stop: Callable[[], bool],
) -> bool:
    """Goes on from `state.step`; whether it came to its end. `keep` stores the state, every so often and at the end."""
    network = state.coder.network
    losses: list[Tensor] = []
    while state.step < settings.steps and state.clock.share < 1.0:
        if stop():
            keep()
            return False
        batch = _drawn(lessons, state.step, settings, state.coder.vocabulary)
        loss = _loss(network, batch, settings.prompt_weight)
        loss.backward()
        losses.append(loss.detach())
        share = max(state.step / settings.steps, state.clock.share)
        clipped_step(network, state.optimiser, rate_at(state.step, share, settings.rate, settings.warm_up))
        state.step += 1
        if state.step % settings.every == 0:
            loss_mean = float(torch.stack(losses).mean())
            said = {"stage": "sft", "step": state.step, "loss": loss_mean, **_watched(state, held_out, settings)}
            tell({**said, "seconds": round(state.clock.spent_s, 1)})
            losses.clear()
            keep()
    keep()
    return True


def exact(network: CoderNetwork, lessons: Sequence[PromptLesson], most: int = 512) -> float:
    """Share of lessons whose likeliest answer is the one that was learnt from, token by token."""
    if not lessons:
        return float("nan")
    generator = torch.Generator(next(network.parameters()).device)
    said = sample(network, [one.prompt for one in lessons], temperature=0.0, most=most, generator=generator)
    return float(np.mean([tuple(answer) == one.answer for answer, one in zip(said, lessons, strict=True)]))


def _watched(state: CoderState, held_out: Sequence[PromptLesson], settings: SftSettings) -> dict[str, float]:
    network, some = state.coder.network, held_out[: settings.watched]
    if not some:
        return {}
    with torch.no_grad():
        parts = [some[at : at + settings.batch] for at in range(0, len(some), settings.batch)]
        loss = float(np.mean([float(_loss(network, part, 0.0)) for part in parts]))
    return {"held_out_loss": loss, "held_out_exact": exact(network, some)}


def _drawn(
    lessons: Sequence[PromptLesson], step: int, settings: SftSettings, vocabulary: Vocabulary
) -> list[PromptLesson]:
    """A batch of lessons of about one length, names and lines dealt anew."""
    rng = np.random.default_rng([settings.seed, step // POOL])
    chosen = rng.integers(len(lessons), size=settings.batch * POOL)
    ordered = sorted((lessons[at] for at in chosen), key=len)
    place = int(rng.permutation(POOL)[step % POOL])
    batch = ordered[place * settings.batch : (place + 1) * settings.batch]
    dealing = np.random.default_rng([settings.seed, 1, step])
    return [one.shuffled(vocabulary, dealing) for one in batch]


def _loss(network: CoderNetwork, lessons: Sequence[PromptLesson], prompt_weight: float) -> Tensor:
    device = next(network.parameters()).device
    tokens, _ = padded([(*one.prompt, *one.answer) for one in lessons], device, left=False)
    places = torch.arange(tokens.shape[1] - 1, device=device)[None]
    asked = torch.tensor([len(one.prompt) for one in lessons], device=device)[:, None]
    whole = torch.tensor([len(one) for one in lessons], device=device)[:, None]
    answers = (places >= asked - 1) & (places < whole - 1)
    prompts = places < asked - 1
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        losses = -network(tokens)
    found = (losses * answers).sum() / answers.sum()
    return found + prompt_weight * (losses * prompts).sum() / prompts.sum() if prompt_weight else found
