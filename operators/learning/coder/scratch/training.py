"""What both stages share: a run's folder, its checkpoints, its progress, its clock.

A run's folder holds `state.pt` (all that going on needs), `coder.pt` (the network alone, as `--model scratch:PATH`
takes it) and `progress.jsonl` (what was said). Files are written whole or not at all; nothing in them is code.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from operators.learning.coder.scratch.network import CoderNetwork, Shape
from operators.learning.coder.scratch.vocabulary import Vocabulary
from operators.learning.weights import WeightsFormat

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


def save_coder(path: Path, coder: Trained, about: Mapping[str, Any]) -> None:
    """`about`: how it was made, as JSON has it."""
    weights = {name: value.detach().to("cpu", torch.float32) for name, value in coder.network.state_dict().items()}
    FORMAT.write(path, {**_head(coder), "weights": weights, "about": json.dumps(dict(about))})


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
        weights = {name: value.detach().cpu() for name, value in self.coder.network.state_dict().items()}
        FORMAT.write(
            folder / "state.pt",
            {
                **_head(self.coder), "weights": weights, "stage": self.stage, "step": self.step,
                "optimiser": self.optimiser.state_dict(), "spent_s": self.clock.spent_s,
                "extra": json.dumps(self.extra), "about": json.dumps(dict(about)),
            },
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


def _head(coder: Trained) -> dict[str, Any]:
    return {"shape": asdict(coder.network.shape), "vocabulary": coder.vocabulary.data()}


def _coder_of(data: Mapping[str, Any], device: str) -> Trained:
    network = CoderNetwork(Shape(**data["shape"]))
    network.load_state_dict(data["weights"])
    return Trained(network.to(device), Vocabulary.of(data["vocabulary"]))
