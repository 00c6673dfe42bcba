"""The small transformer: every offer of a decision gets a score, the decision a value. Made from scratch.

    source tokens -> embedding -> patches of PATCH tokens ─┐
    context numbers ───────────────────────────────────────┼─> transformer ─> score an offer, value
    path, tried and offered actions ───────────────────────┘

Everything attends to everything, so offers are compared with each other and with what was tried. About 0.4 M parameters
with the defaults; one decision takes a few milliseconds on a CPU core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from operators.learning.policy_features import (
    ACTION_NUMBERS,
    STRATEGIES,
    VOCABULARY,
    Encoded,
    Observation,
    Seen,
    encoded,
)
from operators.macro.catalogue import FAMILIES
from operators.macro.features import FEATURES

PATCH = 16  # tokens that become one position
POSITIONS = 64  # patches of a source, at most: TOKENS / PATCH


class Scorer(nn.Module):
    """What every policy model is: sights in, (scores [B, offers] padded with -inf, values [B]) out.

    `kind` and `settings` say in a checkpoint how it is built again, `stored` and `restore` what of it was trained.
    """

    kind = ""
    settings: Any
    free_scores = True  # any number, so that they can say what is expected; a language model's are log probabilities
    batch = 32  # decisions with gradients at once
    offline_lr = 1e-3  # of imitation and regression
    policy_lr = 3e-4  # of PPO: what starts from scratch needs more than a language model's 1e-6
    value_lr = 1e-3  # of its critic

    def critic_parameters(self) -> list[nn.Parameter]:
        """Those of the value alone."""
        raise NotImplementedError

    def stored(self) -> dict[str, Tensor]:
        return self.state_dict()

    def restore(self, stored: dict[str, Tensor]) -> None:
        self.load_state_dict(stored)


@dataclass(frozen=True)
class NetworkSettings:
    """`blind`: the probability with which a training example shows no source. A text says which task it is, and then
    what to do can be learnt by heart; without it the policy must also know from plans and histories."""

    width: int = 96
    layers: int = 2
    heads: int = 4
    dropout: float = 0.1
    blind: float = 0.5
    seen: Seen = field(default_factory=Seen)


class PolicyNetwork(Scorer):
    """The transformer."""

    kind = "network"

    def __init__(self, settings: NetworkSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or NetworkSettings()
        width, dropout = self.settings.width, self.settings.dropout
        self.token = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.patch = nn.Conv1d(width, width, PATCH, stride=PATCH)
        self.position = nn.Embedding(POSITIONS, width)
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
        rows = [encoded(self.settings.seen.of(sight)) for sight in sights]
        source, blank = self._source(rows)
        actions, absent = self._actions(rows)
        facts = self.context(self._tensor([row.context for row in rows]))[:, None]
        known = torch.zeros(len(rows), 1, dtype=torch.bool, device=facts.device)
        seen = self.body(
            torch.cat([facts, source, actions], 1), src_key_padding_mask=torch.cat([known, blank, absent], 1)
        )
        scores = self.score(seen[:, 1 + source.shape[1] :])[..., 0]
        return _offered(scores, rows), self.value(seen[:, 0])[..., 0]

    def critic_parameters(self) -> list[nn.Parameter]:
        return list(self.value.parameters())

    def _source(self, rows: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
        """Patches [B, P, width], and where there are none."""
        found = self._padded([torch.from_numpy(row.tokens) for row in rows])
        found = nn.functional.pad(found, (0, -found.shape[1] % PATCH))
        if self.training:
            kept = torch.rand(len(rows), 1, device=found.device) >= self.settings.blind
            found = found * kept
        blank = (found == 0).view(len(rows), -1, PATCH).all(-1)
        patches = self.patch(self.token(found).transpose(1, 2)).transpose(1, 2)
        return patches + self.position.weight[: patches.shape[1]], blank

    def _actions(self, rows: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
        """Actions [B, A, width], and where there are none."""
        words = self._padded([torch.from_numpy(row.words) for row in rows])
        place = self.token(words).sum(2) / (words != 0).sum(2, keepdim=True).clamp(min=1)
        name = self.name(self._padded([torch.from_numpy(row.names) for row in rows]))
        family = self.family(self._padded([torch.from_numpy(row.families) for row in rows]))
        numbers = self.numbers(self._padded([torch.from_numpy(row.numbers) for row in rows]))
        counts = torch.tensor([len(row.names) for row in rows], device=words.device)
        absent = torch.arange(words.shape[1], device=words.device)[None] >= counts[:, None]
        return name + family + place + numbers, absent

    def _padded(self, parts: list[Tensor]) -> Tensor:
        return pad_sequence(parts, batch_first=True).to(self.position.weight.device)

    def _tensor(self, rows: list) -> Tensor:
        return torch.stack([torch.from_numpy(row) for row in rows]).to(self.position.weight.device)


def _offered(scores: Tensor, rows: Sequence[Encoded]) -> Tensor:
    """The scores of the offers alone, [B, most offers], padded with -inf."""
    parts = [score[len(row.names) - row.offers : len(row.names)] for score, row in zip(scores, rows, strict=True)]
    return pad_sequence(parts, batch_first=True, padding_value=float("-inf"))
