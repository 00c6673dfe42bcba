"""Examples as tokens, the state of a training run in its folder, and the supervised stage.

A run's folder holds `state.pt` (all that going on needs), `coder.pt` (the network alone, as `--model scratch:PATH`
takes it) and `progress.jsonl` (what was said). Files are written whole or not at all; nothing in them is code.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evo_kernel.types import Strategy
from operators.learning.coder.answers import numbered, written
from operators.learning.coder.examples import Example
from operators.learning.coder.scratch.network import CoderNetwork, Shape, padded, sample
from operators.learning.coder.scratch.vocabulary import ANSWER, ASK, BEGIN, END, Names, Vocabulary, usual_names
from operators.learning.network import WeightsFormat

_DEAF = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever waits for them
MANY = 4000  # examples from which on it is worth to start processes


@dataclass(frozen=True)
class Request:
    """A prompt as tokens, and what it takes to read an answer to it."""

    prompt: tuple[int, ...] = field(repr=False)
    names: Names = field(repr=False)

    def read(self, vocabulary: Vocabulary, answer: Sequence[int]) -> str:
        """The edit that the tokens of an answer spell."""
        return vocabulary.decode(answer, self.names)


@dataclass(frozen=True)
class PromptLesson:
    """`prompt` and `answer` as tokens; END closes the answer."""

    prompt: tuple[int, ...] = field(repr=False)
    answer: tuple[int, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)

    def shuffled(self, vocabulary: Vocabulary, rng: np.random.Generator) -> PromptLesson:
        """The same lesson with its names in other slots and its lines counted from another number."""
        tokens = vocabulary.shuffled(np.array((*self.prompt, *self.answer)), rng).tolist()
        return PromptLesson(tuple(tokens[: len(self.prompt)]), tuple(tokens[len(self.prompt) :]))


def request(vocabulary: Vocabulary, strategy: Strategy, parent: str) -> Request:
    names = Names.of(parent, usual=vocabulary.usual)
    asked, source = vocabulary.encode(strategy.key, names), vocabulary.encode(numbered(parent), names)
    return Request((BEGIN, *asked, ASK, *source, ANSWER), names)


def lesson(vocabulary: Vocabulary, one: Example) -> PromptLesson:
    names = Names.of(one.parent, one.child, vocabulary.usual)
    answer = (*vocabulary.encode(written(one.parent, one.child), names), END)
    return PromptLesson(request(vocabulary, one.strategy, one.parent).prompt, answer)


def lessons(vocabulary: Vocabulary, examples: Sequence[Example], workers: int = 1) -> list[PromptLesson]:
    """In order; many are made by so many processes, a millisecond each."""
    if workers <= 1 or len(examples) <= MANY:
        return [lesson(vocabulary, one) for one in examples]
    bare = [replace(one, messages=(), reasoning="") for one in examples]  # what nobody needs there
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), signal.signal, _DEAF) as pool:
        return list(pool.map(partial(lesson, Vocabulary.of(vocabulary.data())), bare, chunksize=200))


def vocabulary_of(examples: Sequence[Example], size: int) -> Vocabulary:
    """Learnt from these; what has a slot is left out of its pairs."""
    usual = usual_names((one.parent, one.child) for one in examples)
    texts: list[str] = []
    for one in examples:
        names = Names.of(one.parent, one.child, usual)
        for text in (one.strategy.key, numbered(one.parent), written(one.parent, one.child)):
            texts += [piece for piece in names.split(text) if isinstance(piece, str)]
    return Vocabulary.learnt(texts, size, usual)


FORMAT = WeightsFormat("evo-kernel coder", 2, "coder", "evo-kernel train coder")  # 1 had no slots for names
Tell = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Trained:
    """A network and the vocabulary that it speaks."""

    network: CoderNetwork = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device


def save_coder(path: Path, coder: Trained, about: Mapping[str, Any], **more: Any) -> None:
    """`about`: how it was made, as JSON has it."""
    weights = {name: value.detach().to("cpu", torch.float32) for name, value in coder.network.state_dict().items()}
    head = {"shape": asdict(coder.network.shape), "vocabulary": coder.vocabulary.data()}
    FORMAT.write(path, {**head, "weights": weights, "about": json.dumps(dict(about)), **more})


def load_coder(path: Path, device: str = "cpu") -> tuple[Trained, dict[str, Any]]:
    """The coder and what is said about it. Raises UserError for a file that holds none."""
    data = FORMAT.read(path)
    with FORMAT.described(path):
        return _coder_of(data, device), json.loads(data["about"])


@dataclass
class Clock:
    """Seconds of training, earlier sessions included. `limit_s`: after which a stage ends; None: never."""

    limit_s: float | None = None
    before_s: float = 0.0
    began: float = field(default_factory=time.monotonic)

    @property
    def spent_s(self) -> float:
        return self.before_s + time.monotonic() - self.began

    @property
    def share(self) -> float:
        """Of the limit, 0 to 1; 0 where there is none."""
        return 0.0 if self.limit_s is None else min(1.0, self.spent_s / max(self.limit_s, 1e-9))


@dataclass
class CoderState:
    """Where a stage of a run stands: what a resume goes on with."""

    stage: str
    step: int
    coder: Trained
    optimiser: torch.optim.Optimizer
    clock: Clock
    extra: dict[str, Any] = field(default_factory=dict)  # as JSON has it

    def save(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Both files of the run's folder."""
        save_coder(
            folder / "state.pt", self.coder, about, stage=self.stage, step=self.step,
            optimiser=self.optimiser.state_dict(), spent_s=self.clock.spent_s, extra=json.dumps(self.extra),
        )  # fmt: skip
        save_coder(folder / "coder.pt", self.coder, {**about, "stage": self.stage, "step": self.step})


def stored(folder: Path, device: str, limits: Mapping[str, float | None]) -> tuple[CoderState, dict[str, Any]] | None:
    """Where the run in a folder stands, and what is said about it; None where there is none yet. `limits`: of the
    clock, by stage. Raises UserError."""
    path = folder / "state.pt"
    if not path.exists():
        return None
    data = FORMAT.read(path)
    with FORMAT.described(path):
        coder = _coder_of(data, device)
        optimiser = optimiser_of(coder.network)
        optimiser.load_state_dict(data["optimiser"])
        clock = Clock(limits.get(data["stage"]), float(data["spent_s"]))
        state = CoderState(data["stage"], int(data["step"]), coder, optimiser, clock, json.loads(data["extra"]))
        return state, json.loads(data["about"])


def optimiser_of(network: CoderNetwork) -> torch.optim.AdamW:
    """AdamW with decay on matrices alone; its rate is set with every step."""
    matrices = [one for one in network.parameters() if one.ndim > 1]
    vectors = [one for one in network.parameters() if one.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def rate_at(step: int, share: float, rate: float, warm_up: int, least: float = 0.1) -> float:
    """Linear warm-up over steps, then a cosine over `share` (0 to 1) of the stage, down to `least` of the rate."""
    falling = least + (1 - least) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
    return rate * min(1.0, (step + 1) / max(1, warm_up)) * falling


def clipped_step(network: CoderNetwork, optimiser: torch.optim.Optimizer, rate: float) -> None:
    """One step of the optimiser, the gradient's norm held to 1. A gradient that is not finite is dropped."""
    norm = float(torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0))
    if math.isfinite(norm):
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def _coder_of(data: Mapping[str, Any], device: str) -> Trained:
    network = CoderNetwork(Shape(**data["shape"]))
    network.load_state_dict(data["weights"])
    return Trained(network.to(device), Vocabulary.of(data["vocabulary"]))


EXACT = 512  # tokens of an answer that is compared
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


def train_supervised(
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
            said = {"stage": "sft", "step": state.step, "loss": loss_mean, **_watched(state.coder, held_out, settings)}
            tell({**said, "seconds": round(state.clock.spent_s, 1)})
            losses.clear()
            keep()
    keep()
    return True


def _watched(coder: Trained, held_out: Sequence[PromptLesson], settings: SftSettings) -> dict[str, float]:
    """Of lessons that are not learnt from: the loss, and how many likeliest answers are right token by token."""
    network, some = coder.network, held_out[: settings.watched]
    if not some:
        return {}
    with torch.no_grad():
        parts = [some[at : at + settings.batch] for at in range(0, len(some), settings.batch)]
        loss = float(np.mean([float(_loss(network, part, 0.0)) for part in parts]))
    said = sample(network, [one.prompt for one in some], 0.0, EXACT, torch.Generator(coder.device))
    exact = float(np.mean([tuple(answer) == one.answer for answer, one in zip(said, some, strict=True)]))
    return {"held_out_loss": loss, "held_out_exact": exact}


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
