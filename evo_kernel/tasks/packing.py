"""Sequences that share a prompt, packed so that the prompt is there once: N(P + R) tokens become P + N·R.

What a training step over N responses to one prompt feeds its model: rows of the prompt first, then those of each
response, as the tasks shared_prompt and shared_prompt_backward take them. Only attention looks across rows, so every
other layer works on packed rows as they are; positions of a response go on where the prompt ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch


@dataclass(frozen=True)
class Packed:
    """Packed rows. `starts`: where each response begins among the rows of all responses, and their sum at the end."""

    tokens: torch.Tensor  # (rows,)
    prompt: int
    starts: tuple[int, ...]

    @cached_property
    def cu(self) -> torch.Tensor:
        """`starts` as the tasks take them: int32 (N + 1)."""
        return torch.tensor(self.starts, dtype=torch.int32, device=self.tokens.device)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each response."""
        return tuple(end - start for start, end in pairwise(self.starts))

    @cached_property
    def positions(self) -> torch.Tensor:
        """(rows,): of each row in its own sequence."""
        own = [torch.arange(self.prompt, self.prompt + length) for length in self.lengths]
        return torch.cat([torch.arange(self.prompt), *own]).to(self.tokens.device)

    @cached_property
    def predictors(self) -> torch.Tensor:
        """(sum of lengths,): the row that predicts each token of the responses; a first one's is the prompt's last."""
        rows = torch.arange(self.prompt - 1, self.prompt - 1 + self.starts[-1])
        rows[list(self.starts[:-1])] = self.prompt - 1
        return rows.to(self.tokens.device)

    @property
    def responses(self) -> torch.Tensor:
        """(sum of lengths,): the tokens that `predictors` predict."""
        return self.tokens[self.prompt :]

    @cached_property
    def numbers(self) -> torch.Tensor:
        """(sum of lengths,): which response each token of the responses belongs to."""
        counts = torch.tensor(self.lengths)
        return torch.arange(len(counts)).repeat_interleave(counts).to(self.tokens.device)

    @property
    def saving(self) -> float:
        """How many times as many rows the same sequences have one by one."""
        return (len(self.lengths) * self.prompt + self.starts[-1]) / len(self.tokens)

    def sequences(self) -> list[torch.Tensor]:
        """The N sequences, each with its copy of the prompt."""
        return [torch.cat([self.tokens[: self.prompt], part]) for part in self.responses.split(list(self.lengths))]


def pack(sequences: Sequence[torch.Tensor], prompt: int) -> Packed:
    """Pack sequences of tokens whose first `prompt` tokens are the same. Each must have one more at least.

    Raises ValueError for a sequence that does not begin with the others' prompt, or holds nothing else.
    """
    if not sequences or prompt < 1:
        raise ValueError("Nothing to pack: give one sequence at least, and a prompt of one token at least.")
    shared = sequences[0][:prompt]
    for number, sequence in enumerate(sequences):
        if len(sequence) <= prompt:
            raise ValueError(
                f"Sequence {number} has {len(sequence)} tokens, no more than the prompt's {prompt}: leave out "
                "sequences without a response."
            )
        if not torch.equal(sequence[:prompt], shared):
            place = int((sequence[:prompt] != shared).nonzero()[0])
            raise ValueError(
                f"Sequence {number} differs from sequence 0 at token {place}, within the prompt's {prompt}: pack only "
                "sequences that share a prompt, or give the length that they do share."
            )
    starts = [0]
    for sequence in sequences:
        starts.append(starts[-1] + len(sequence) - prompt)
    return Packed(torch.cat([shared, *(sequence[prompt:] for sequence in sequences)]), prompt, tuple(starts))
