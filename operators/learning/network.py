"""The policy network, which scores the offers of a decision and values it, and files of trained weights.

    context numbers ──────────────────────────┐
    earned, path, tried and offered actions ──┴─> transformer ─> score an offer, value

Everything attends to everything, so offers are compared with each other and with what was tried. About 0.28 million
parameters with the defaults; one decision takes a few milliseconds on a CPU core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from evo_kernel.errors import UserError
from operators.learning.policy_features import ACTION_NUMBERS, STRATEGIES, VOCABULARY, Observation, encoded
from operators.macro.catalogue import FAMILIES
from operators.macro.features import FEATURES


@dataclass(frozen=True)
class WeightsFormat:
    """`name` and `version` stand in the file; `what` it holds, for people, and the command that `makes` one."""

    name: str
    version: int
    what: str  # "policy"
    makes: str

    def write(self, path: Path, data: Mapping[str, Any]) -> int:
        """The file, whole or not at all; its size in bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        torch.save({"format": self.name, "version": self.version, **data}, part)
        part.replace(path)
        return path.stat().st_size

    def read(self, path: Path) -> dict[str, Any]:
        """Raises UserError for a file that is not there, holds something else, or is of another version."""
        with self.described(path):
            data = torch.load(path, map_location="cpu", weights_only=True)
            if data["format"] != self.name:
                raise ValueError(f"its format is {data['format']!r}")
            version = data["version"]
        if version != self.version:
            advice = "update it" if version > self.version else f"train it anew with `{self.makes}`"
            raise UserError(f"{path} has version {version}; this evo-kernel reads {self.version}: {advice}.")
        return data

    @contextmanager
    def described(self, path: Path) -> Iterator[None]:
        """What goes wrong with the contents of a file, as a UserError."""
        try:
            yield
        except UserError:
            raise
        except OSError as error:
            raise UserError(f"{path}: the {self.what} cannot be read: {error.strerror or error}.") from None
        except Exception as error:  # noqa: BLE001 (a torn or foreign file fails in as many ways as there are bytes)
            told = str(error).partition("\n")[0][:200]
            raise UserError(
                f"{path} is no trained {self.what} ({type(error).__name__}: {told}). Make one with `{self.makes}`."
            ) from None


@dataclass(frozen=True)
class NetworkSettings:
    width: int = 96
    layers: int = 2
    heads: int = 4
    dropout: float = 0.1


class OfferScorer(nn.Module):
    """Observations in, (scores [B, offers] padded with -inf, values [B]) out. `value` is the critic's alone."""

    value: nn.Module


class PolicyNetwork(OfferScorer):
    """The small transformer."""

    def __init__(self, settings: NetworkSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or NetworkSettings()
        width, dropout = self.settings.width, self.settings.dropout
        self.token = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.context = nn.Sequential(nn.Linear(len(FEATURES), width), nn.GELU(), nn.Linear(width, width))
        self.name = nn.Embedding(len(STRATEGIES), width)
        self.family = nn.Embedding(len(FAMILIES), width)
        self.numbers = nn.Linear(ACTION_NUMBERS, width)
        layer = nn.TransformerEncoderLayer(
            width, self.settings.heads, 2 * width, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, self.settings.layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.score = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
        self.value = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, sights: Sequence[Observation]) -> tuple[Tensor, Tensor]:
        rows = [encoded(sight) for sight in sights]
        parts = {name: [torch.from_numpy(row[name]) for row in rows] for name in rows[0]}
        device = self.name.weight.device
        packed = {name: pad_sequence(some, batch_first=True).to(device) for name, some in parts.items()}
        counts = torch.tensor([len(row["names"]) for row in rows], device=packed["names"].device)
        absent = torch.arange(packed["names"].shape[1], device=counts.device)[None] >= counts[:, None]
        words = packed["words"]
        place = self.token(words).sum(2) / (words != 0).sum(2, keepdim=True).clamp(min=1)
        actions = self.name(packed["names"]) + self.family(packed["families"]) + place + self.numbers(packed["numbers"])
        facts = self.context(packed["context"])[:, None]
        mask = nn.functional.pad(absent, (1, 0))  # the facts are always there
        seen = self.body(torch.cat([facts, actions], 1), src_key_padding_mask=mask)
        scores = self.score(seen[:, 1:])[..., 0]
        ends = counts.tolist()
        offered = [row[end - len(one.offered) : end] for row, end, one in zip(scores, ends, sights, strict=True)]
        return pad_sequence(offered, batch_first=True, padding_value=float("-inf")), self.value(seen[:, 0])[..., 0]


FORMAT = WeightsFormat("evo-kernel policy", 1, "policy", "evo-kernel train policy")
WORDS = {"features": list(FEATURES), "strategies": list(STRATEGIES)}


def save_policy(path: Path, model: PolicyNetwork, about: Mapping[str, str | int | float | bool]) -> int:
    """Writes it at once or not at all; returns its size in bytes. `about`: how it came to be."""
    weights = {name: value.cpu() for name, value in model.state_dict().items()}
    data = {"settings": asdict(model.settings), "model": weights, "words": WORDS}
    return FORMAT.write(path, {**data, "about": dict(about)})


def load_policy(path: Path) -> tuple[PolicyNetwork, dict[str, Any]]:
    """The model, ready to score, and what is told about it. Raises UserError."""
    data = FORMAT.read(path)
    with FORMAT.described(path):
        names = list(data["words"]["strategies"])
        fits = data["words"] == WORDS | {"strategies": names} and set(names) <= set(STRATEGIES) and "other" in names
        if not fits:
            raise UserError(
                f"{path} is a policy with other features or strategies than this evo-kernel has: train it anew with "
                f"`{FORMAT.makes}`."
            )
        model, weights = PolicyNetwork(NetworkSettings(**data["settings"])), data["model"]
        # A strategy that came later is to it what any without a name of its own is.
        rows = [names.index(name if name in names else "other") for name in STRATEGIES]
        model.load_state_dict(weights | {"name.weight": weights["name.weight"][rows]})
        return model.eval(), dict(data["about"])
