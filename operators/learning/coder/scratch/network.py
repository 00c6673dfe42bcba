"""A decoder-only transformer that can point: what comes next is drawn from its vocabulary, or copied from before.

RMS norms before each block, rotary positions, gated feed-forward and tied embeddings are the field's common forms
(Zhang & Sennrich 2019; Su et al. 2021; Shazeer 2020), the mixture is that of pointer sentinels (Merity et al. 2016,
arXiv:1609.07843): a place is the likelier pointed at, the more what stood before it is like what stands here. An edit
is copied for the most part; without a pointer, 15 million parameters had not begun to copy names after 5,500 steps.

Batches are padded on the left when they are sampled, so that all rows end at one place; `start` says where each begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from operators.learning.coder.scratch.vocabulary import END, PAD


@dataclass(frozen=True)
class Shape:
    """Of a network. `context`: tokens of prompt and answer together at most."""

    vocabulary: int
    width: int = 384
    layers: int = 8
    heads: int = 6
    context: int = 1536


SIZES: Mapping[str, Mapping[str, int]] = {
    "tiny": {"width": 32, "layers": 2, "heads": 2, "context": 1024},  # for tests
    "mini": {"width": 128, "layers": 3, "heads": 4, "context": 768},  # 0.8 million parameters: a CPU, to see it move
    "small": {"width": 192, "layers": 4, "heads": 4, "context": 1024},  # 2 million: a CPU, hours
    "base": {"width": 384, "layers": 8, "heads": 6, "context": 1536},  # 15 million: a GPU, minutes
}


POINTER = 64  # width of what places are compared by


class Cache:
    """What was read so far, filled up to `filled`: keys and values, (batch, heads, length, head width) a layer; tokens
    (batch, length), and what places are known by to the pointer, (batch, length, POINTER).
    """

    def __init__(self, shape: Shape, batch: int, length: int, like: Tensor) -> None:
        size = (batch, shape.heads, length, shape.width // shape.heads)
        self.keys = [like.new_empty(size) for _ in range(shape.layers)]
        self.values = [like.new_empty(size) for _ in range(shape.layers)]
        self.tokens = torch.empty(batch, length, dtype=torch.long, device=like.device)
        self.places = like.new_empty((batch, length, POINTER))
        self.filled = 0


class CoderNetwork(nn.Module):
    """Tokens (batch, length) -> log probability of each but the first, given those before it (batch, length - 1)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(_Block(shape, number) for number in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.pointing = _Pointing(shape.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        turns = 10_000.0 ** (-torch.arange(0, shape.width // shape.heads, 2).float() / (shape.width // shape.heads))
        angles = torch.arange(shape.context).float()[:, None] * turns
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, start: Tensor | None = None, last: int | None = None) -> Tensor:
        """`last`: of so many tokens at the end alone, (batch, last)."""
        found = self.features(tokens[:, :-1], start)
        asking = found if last is None else found[:, -last:]
        wanted = tokens[:, -asking.shape[1] :]
        spelled = F.linear(asking, self.embedding.weight).float().log_softmax(dim=-1).gather(-1, wanted[..., None])
        shares = self.pointing.shares(asking, self.pointing.known(found[:, :-1]), start)
        copied = (shares * (tokens[:, None, 1:-1] == wanted[..., None])).sum(dim=-1)
        return self.pointing.mixed(asking, spelled[..., 0], copied)

    def following(self, tokens: Tensor, start: Tensor, cache: Cache) -> Tensor:
        """Log probabilities of what comes after the last of `tokens`, (batch, vocabulary); they go into the cache."""
        before = cache.filled
        found = self.features(tokens, start, cache)
        end = cache.filled
        cache.tokens[:, before:end] = tokens
        cache.places[:, before:end] = self.pointing.known(found)
        asking = found[:, -1:]
        spelled = F.linear(asking[:, 0], self.embedding.weight).float().log_softmax(dim=-1)
        shares = self.pointing.shares(asking, cache.places[:, : end - 1], start)[:, 0]
        copied = torch.zeros_like(spelled).scatter_add_(1, cache.tokens[:, 1:end], shares)
        return self.pointing.mixed(asking, spelled[:, None], copied[:, None])[:, 0]

    def features(self, tokens: Tensor, start: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """The last layer's output (batch, length, width). `start` (batch,): columns of padding on the left."""
        before = cache.filled if cache is not None else 0
        length = tokens.shape[1]
        columns = torch.arange(before, before + length, device=tokens.device)
        places = columns[None] if start is None else (columns[None] - start[:, None]).clamp(min=0)
        turn = (self.cosines[places][:, None], self.sines[places][:, None])  # type: ignore[index]
        mask = None
        if start is not None:
            seen = torch.arange(before + length, device=tokens.device)
            causal = seen[None, :] <= columns[:, None]
            mask = (causal[None] & (seen[None, None] >= start[:, None, None]))[:, None]
            mask = mask | (seen == columns[:, None])[None, None]  # padding sees itself: an empty row is NaN
        found = self.embedding(tokens)
        for block in self.blocks:
            found = block(found, turn, mask, cache)
        if cache is not None:
            cache.filled = before + length
        return self.norm(found)


class _Pointing(nn.Module):
    """Shares of places to copy from. A place is known by what stood before it: the features of the one before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.asked, self.known = nn.Linear(width, POINTER, bias=False), nn.Linear(width, POINTER, bias=False)
        self.gate = nn.Linear(width, 1)
        nn.init.normal_(self.asked.weight, std=width**-0.5)
        with torch.no_grad():  # so that what is alike attracts from the first step on
            self.known.weight.copy_(self.asked.weight)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, -1.0)

    def shares(self, asking: Tensor, known: Tensor, start: Tensor | None) -> Tensor:
        """(batch, asking, known), rows that add up to 1. The last of `asking` may point at every one of `known`, each
        before it at one less; 0 for padding, and where there is nothing to point at.
        """
        places = torch.arange(known.shape[1], device=known.device)
        lasts = torch.arange(asking.shape[1], device=known.device) + known.shape[1] - asking.shape[1]
        allowed = (places[None, :] <= lasts[:, None])[None]
        if start is not None:
            allowed = allowed & (places >= start[:, None])[:, None]
        scores = (self.asked(asking) @ known.transpose(1, 2)).float() * POINTER**-0.5
        return scores.masked_fill(~allowed, -1e9).softmax(dim=-1) * allowed

    def mixed(self, asking: Tensor, spelled: Tensor, copied: Tensor) -> Tensor:
        """Of log probabilities from the vocabulary, and probabilities of what is copied; both (batch, asking, ...)."""
        gate = self.gate(asking).float().view(asking.shape[:2] + (1,) * (spelled.ndim - 2))
        return torch.logaddexp(F.logsigmoid(-gate) + spelled, F.logsigmoid(gate) + (copied + 1e-9).log())


class _Block(nn.Module):
    def __init__(self, shape: Shape, number: int) -> None:
        super().__init__()
        width, hidden = shape.width, 8 * shape.width // 3 // 32 * 32 or 32
        self.number, self.heads, self.scale = number, shape.heads, (2 * shape.layers) ** -0.5
        self.norm_one, self.norm_two = nn.RMSNorm(width), nn.RMSNorm(width)
        self.inward, self.outward = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)
        for layer, std in ((self.inward, 0.02), (self.up, 0.02), (self.outward, 0.02 * self.scale)):
            nn.init.normal_(layer.weight, std=std)
        nn.init.normal_(self.down.weight, std=0.02 * self.scale)

    def forward(self, found: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None, cache: Cache | None) -> Tensor:
        batch, length, width = found.shape
        mixed = self.inward(self.norm_one(found)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        query, key = _turned(query, turn), _turned(key, turn)
        if cache is not None:
            end = cache.filled + length
            cache.keys[self.number][:, :, cache.filled : end] = key
            cache.values[self.number][:, :, cache.filled : end] = value
            key, value = cache.keys[self.number][:, :, :end], cache.values[self.number][:, :, :end]
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None and length > 1)
        found = found + self.outward(seen.transpose(1, 2).reshape(batch, length, width))
        gate, value = self.up(self.norm_two(found)).chunk(2, dim=-1)
        return found + self.down(F.silu(gate) * value)


def _turned(found: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions: halves of each head turned by an angle that grows with the place."""
    cosines, sines = turn[0].to(found.dtype), turn[1].to(found.dtype)
    one, two = found.chunk(2, dim=-1)
    return torch.cat((one * cosines - two * sines, two * cosines + one * sines), dim=-1)


def network_of(size: str, vocabulary: int, **changes: Any) -> CoderNetwork:
    return CoderNetwork(Shape(vocabulary=vocabulary, **{**SIZES[size], **changes}))


CHECKED = 16  # steps between looks at whether all rows have ended: each look waits for the device


def padded(rows: Sequence[Sequence[int]], device: torch.device, left: bool) -> tuple[Tensor, Tensor]:
    """(batch, longest) tokens, and (batch,) columns of padding of each row."""
    longest = max(map(len, rows))
    free = [longest - len(row) for row in rows]
    filled = np.full((len(rows), longest), PAD, dtype=np.int64)
    for place, row, gap in zip(filled, rows, free, strict=True):
        place[gap if left else 0 :][: len(row)] = row
    return torch.from_numpy(filled).to(device), torch.tensor(free, device=device)


@torch.no_grad()
def sample(
    network: CoderNetwork,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    most: int,
    generator: torch.Generator,
) -> list[list[int]]:
    """One answer for each prompt, END included where it came; temperature 0 takes the likeliest token.

    `most`: tokens of an answer; fewer where the context ends.
    """
    device = next(network.parameters()).device
    tokens, start = padded(prompts, device, left=True)
    room = min(most, network.shape.context - tokens.shape[1])
    if room <= 0:
        return [[] for _ in prompts]
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        like = torch.empty(0, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
        cache = Cache(network.shape, len(prompts), tokens.shape[1] + room, like)
        said: list[Tensor] = []
        ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        step = tokens
        for number in range(room):
            chosen = _chosen(network.following(step, start, cache), temperature, generator)
            chosen = torch.where(ended, PAD, chosen)
            said.append(chosen)
            ended = ended | (chosen == END)
            if number % CHECKED == CHECKED - 1 and bool(ended.all()):
                break
            step = chosen[:, None]
    rows = torch.stack(said, dim=1).tolist()
    return [row[: row.index(END) + 1] if END in row else [token for token in row if token != PAD] for row in rows]


def _chosen(chances: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    chances[:, :END] = -torch.inf  # marks of the prompt's parts are no part of an answer
    if temperature <= 0:
        return chances.argmax(dim=-1)
    return torch.multinomial(torch.softmax(chances / temperature, dim=-1), 1, generator=generator)[:, 0]
