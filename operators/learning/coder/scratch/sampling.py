"""Many completions at once: prompts padded on the left, one step for all rows, rows that ended are dropped late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from operators.learning.coder.scratch.network import Cache, CoderNetwork
from operators.learning.coder.scratch.vocabulary import END, PAD

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
    *,
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
    answers = torch.stack(said, dim=1).tolist()
    return [_until_end(answer) for answer in answers]


def _chosen(chances: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    chances[:, :END] = -torch.inf  # marks of the prompt's parts are no part of an answer
    if temperature <= 0:
        return chances.argmax(dim=-1)
    return torch.multinomial(torch.softmax(chances / temperature, dim=-1), 1, generator=generator)[:, 0]


def _until_end(answer: list[int]) -> list[int]:
    return answer[: answer.index(END) + 1] if END in answer else [token for token in answer if token != PAD]
