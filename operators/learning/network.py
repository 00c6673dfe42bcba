"""The policy network: a small transformer that gives every offer of a decision a score, and the decision a value.

    context numbers ──────────────────────────┐
    earned, path, tried and offered actions ──┴─> transformer ─> score an offer, value

Everything attends to everything, so offers are compared with each other and with what was tried. About 0.28 million
parameters with the defaults; one decision takes a few milliseconds on a CPU core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from operators.learning.policy_features import ACTION_NUMBERS, STRATEGIES, VOCABULARY, Observation, encoded
from operators.macro.catalogue import FAMILIES
from operators.macro.features import FEATURES


@dataclass(frozen=True)
class NetworkSettings:
    width: int = 96
    layers: int = 2
    heads: int = 4
    dropout: float = 0.1


class PolicyNetwork(nn.Module):
    """Observations in, (scores [B, offers] padded with -inf, values [B]) out."""

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
        packed = {name: self._padded([row[name] for row in rows]) for name in rows[0]}
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

    def _padded(self, parts: Sequence[np.ndarray]) -> Tensor:
        return pad_sequence([torch.from_numpy(part) for part in parts], batch_first=True).to(self.name.weight.device)
