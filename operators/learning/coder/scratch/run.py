"""A whole training from nothing: vocabulary, supervised stage, held-out rate, rewards, held-out rate again.

Every stage goes on where it was stopped. The same examples, settings and device make the same supervised network; the
judge's times are measured, so that rewards with a speed part do not repeat to the last digit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evo_kernel.errors import UserError
from operators.learning.coder.examples import Example, is_of, rewarded
from operators.learning.coder.rewards import Ask, RewardJudge, RewardParts
from operators.learning.coder.scratch import grpo
from operators.learning.coder.scratch.network import network_of
from operators.learning.coder.scratch.training import (
    Clock,
    CoderState,
    PromptLesson,
    SftSettings,
    Tell,
    Trained,
    lessons,
    load_coder,
    optimiser_of,
    save_coder,
    stored,
    train_supervised,
    vocabulary_of,
)

SFT, GRPO, DONE = "sft", "grpo", "done"
LEARNT_FROM = 2000  # examples that a vocabulary is learnt from


@dataclass(frozen=True)
class RunSettings:
    """Of a whole training. `sft_s`, `grpo_s`: seconds after which a stage ends; None: by its steps alone.

    `asked`: held-out requests that the rate is measured on, `samples` answers to each; 0: none is measured.
    """

    size: str = "base"
    vocabulary: int = 1728  # tokens, bytes, marks and slots among them
    sft: SftSettings = field(default_factory=SftSettings)
    grpo: grpo.GrpoSettings = field(default_factory=grpo.GrpoSettings)
    parts: RewardParts = field(default_factory=RewardParts)
    sft_s: float | None = None
    grpo_s: float | None = None
    asked: int = 48
    samples: int = 4
    start: Path | None = None  # a trained coder to begin with instead of nothing; it has its size and vocabulary
    apart: bool = False  # the examples of `tasks` are not taught: only rewards speak of them
    tasks: tuple[str, ...] = ()  # whose requests the rewards are earned on; empty: every task of the train split
    seed: int = 0
    workers: int = 1  # processes that make lessons of examples

    def about(self, examples: Sequence[Example]) -> dict[str, Any]:
        """What must not change between sessions of one run, and what a checkpoint says of itself."""
        text, start = "\n".join("\0".join(one.key) + one.split for one in examples), None
        try:
            start = hashlib.sha256(self.start.read_bytes()).hexdigest()[:16] if self.start else None
        except OSError as error:
            raise UserError(f"{self.start}: the coder cannot be read: {error.strerror or error}.") from None
        return {
            "examples": hashlib.sha256(text.encode()).hexdigest()[:16], "seed": self.seed, "start": start,
            "size": None if self.start else self.size, "vocabulary": None if self.start else self.vocabulary,
            "parts": asdict(self.parts), "tasks": list(self.tasks), "apart": self.apart,
        }  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Held-out rates before and after the rewards; None where they were not measured. `ended`: ran to its end."""

    ended: bool
    stage: str
    before: Mapping[str, float] | None = None
    after: Mapping[str, float] | None = None


def run(
    examples: Sequence[Example],
    folder: Path,
    settings: RunSettings,
    bench: RewardJudge | None,
    device: str,
    tell: Tell,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Train, or go on. `bench`: None ends after the supervised stage, and nothing is measured. Raises UserError."""
    if settings.start is not None and settings.start.resolve().parent == folder.resolve():
        raise UserError(f"{settings.start} lies in the run's own folder, which would overwrite it: name another --out")
    job = _Run(examples, folder, settings, device, tell)
    if job.state.stage == SFT and not job.supervised(stop):
        return Result(False, SFT)
    if bench is None:
        return Result(True, SFT)
    if job.state.stage == SFT:
        if "before" not in job.state.extra and (rate := job.rate(bench)) is not None:
            job.state.extra["before"] = rate
            job.keep()
        if not settings.grpo.steps:
            return Result(True, SFT, job.state.extra.get("before"))
        # The supervised network stays as the reference; the optimiser begins anew.
        coder, extra = job.state.coder, job.state.extra
        save_coder(folder / "sft.pt", coder, {**job.about, "stage": SFT, "step": job.state.step})
        job.state = CoderState(GRPO, 0, coder, optimiser_of(coder.network), Clock(settings.grpo_s), extra)
        job.keep()
    if job.state.stage == GRPO and not job.rewarded(bench, stop):
        return Result(False, GRPO, job.state.extra.get("before"))
    if job.state.stage == GRPO:
        job.state.extra["after"] = job.rate(bench)
        job.state.stage = DONE
        job.keep()
    return Result(True, DONE, job.state.extra.get("before"), job.state.extra.get("after"))


class _Run:
    def __init__(
        self, examples: Sequence[Example], folder: Path, settings: RunSettings, device: str, tell: Tell
    ) -> None:
        self.folder, self.settings, self.device, self.tell = folder, settings, device, tell
        self.about = settings.about(examples)
        self.train = [one for one in examples if one.split == "train"]
        self.held_out = [one for one in examples if one.split == "held-out"]
        if not self.train:
            raise UserError("no example has split `train`: see --held-out of `evo-kernel train export-sft`")
        for task in settings.tasks:
            if not any(is_of(one, [task]) for one in self.train):
                raise UserError(f"no example of split `train` is of task {task}: rewards are earned on their requests")
        self.shown = [one for one in self.train if not (settings.apart and is_of(one, settings.tasks))]
        if not self.shown:
            raise UserError("--apart leaves no example to teach: earn rewards on fewer tasks (--task)")
        found = stored(folder, device, {SFT: settings.sft_s, GRPO: settings.grpo_s})
        self.state = self._new() if found is None else self._again(*found)
        self.context = self.state.coder.network.shape.context
        taught = lessons(self.state.coder.vocabulary, examples, settings.workers)
        self._taught = {id(one): made for one, made in zip(examples, taught, strict=True)}

    def _new(self) -> CoderState:
        settings = self.settings
        torch.manual_seed(settings.seed)  # of the weights that a network begins with, nothing else
        if settings.start is None:
            rng = np.random.default_rng([settings.seed, 1])
            some = [self.shown[at] for at in rng.permutation(len(self.shown))[:LEARNT_FROM]]
            vocabulary = vocabulary_of(some, settings.vocabulary)
            network = network_of(settings.size, vocabulary.size).to(self.device)
        else:
            begun, _ = load_coder(settings.start, self.device)
            network, vocabulary = begun.network, begun.vocabulary
        self.tell({
            "stage": SFT, "step": 0, "parameters": sum(one.numel() for one in network.parameters()),
            "vocabulary": vocabulary.size, "examples": len(self.shown), "held_out": len(self.held_out),
        })  # fmt: skip
        return CoderState(SFT, 0, Trained(network, vocabulary), optimiser_of(network), Clock(settings.sft_s))

    def _again(self, state: CoderState, about: Mapping[str, Any]) -> CoderState:
        differs = [name for name, value in self.about.items() if about.get(name) != value]
        if differs:
            raise UserError(
                f"{self.folder} holds a run with other {', '.join(differs)}. Give it what it began with, or name "
                "another folder with --out."
            )
        self.tell({"stage": state.stage, "step": state.step, "goes_on_after_s": round(state.clock.spent_s, 1)})
        return state

    def keep(self) -> None:
        self.state.save(self.folder, self.about)

    # -- stages ------------------------------------------------------------------------------------------------------

    def supervised(self, stop: Callable[[], bool]) -> bool:
        taught = self._lessons(self.shown)
        if not taught:
            raise UserError(
                f"none of the {len(self.shown)} examples fits into a context of {self.context} tokens: export smaller "
                "kernels (--most), or take a larger --size."
            )
        watched = self._some(self._lessons(self.held_out), self.settings.sft.watched, 2)
        if self.state.step < self.settings.sft.steps and self.state.clock.share < 1.0:
            self.state.extra.pop("before", None)  # it was another network's
        return train_supervised(self.state, taught, watched, self.settings.sft, self.tell, self.keep, stop)

    def rewarded(self, bench: RewardJudge, stop: Callable[[], bool]) -> bool:
        reference, _ = load_coder(self.folder / "sft.pt", self.device)
        asks = self._asks(rewarded(self.train, self.settings.tasks))
        if not asks:
            raise UserError("no request is left to earn rewards on: see --task and the examples' tasks")
        settings = self.settings
        return grpo.train(
            self.state, reference.network.requires_grad_(False), asks, bench, settings.parts, settings.grpo, self.tell,
            self.keep, stop,
        )  # fmt: skip

    def rate(self, bench: RewardJudge) -> dict[str, float] | None:
        """The share of answers to held-out requests that the judge finds right."""
        asks = self._some(self._asks(self.held_out), self.settings.asked, 3)
        if not asks:
            return None
        self.keep()
        settings = self.settings
        found = grpo.evaluate(self.state.coder, asks, bench, settings.parts, settings.grpo, settings.samples)
        self.tell({"stage": "held-out", "step": self.state.step, **found})
        return found

    def _asks(self, examples: Sequence[Example]) -> list[Ask]:
        """Requests whose prompt and known answer leave room for an answer; each once."""
        room, most = self.context - self.settings.grpo.most, self.settings.grpo.most
        found: dict[tuple[str, str, str], Ask] = {}
        for one in examples:
            taught = self._taught[id(one)]
            if len(taught.prompt) <= room and len(taught.answer) <= most:
                found[(one.task, one.parent, one.strategy.key)] = Ask(one.task, one.parent, one.strategy)
        return list(found.values())

    def _lessons(self, examples: Sequence[Example]) -> list[PromptLesson]:
        """Those that fit into the context; what does not cannot be learnt here."""
        return [taught for one in examples if len(taught := self._taught[id(one)]) <= self.context]

    def _some(self, found: Sequence[Any], count: int, salt: int) -> list[Any]:
        rng = np.random.default_rng([self.settings.seed, salt])
        return [found[at] for at in rng.permutation(len(found))[:count]]


def printed(told: Mapping[str, Any]) -> str:
    """A word of progress as one line."""

    def value(one: Any) -> str:
        return f"{one:.3g}" if isinstance(one, float) else json.dumps(one) if isinstance(one, dict) else str(one)

    rest = ", ".join(f"{name} {value(one)}" for name, one in told.items() if name not in ("stage", "step"))
    return f"{told['stage']} {told['step']}: {rest}"
