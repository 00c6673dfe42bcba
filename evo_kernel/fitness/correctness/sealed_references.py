"""Encrypts references kept on the GPU, so that kernels that read foreign memory cannot use them.

Copying a large reference from the host takes longer than the check. So it stays on the device, exclusive-ored with a
key stream from a secret seed that only the host has. It is decrypted only for the comparison, after the candidate's
kernels; freed memory is overwritten before the next kernel. Small references stay on the host, which is faster.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from evo_kernel.fitness.correctness.error_bounds import Expected
from evo_kernel.lru_cache import Recent

SMALL_BYTES = 1 << 20
Key = tuple[str, int, str]
"""(case, seed, regime)."""


class SealedReferences:
    """Expected outputs by (case, seed, regime), the most recent within `limit_bytes`. For one thread."""

    def __init__(self, device: str, limit_bytes: int) -> None:
        self._device = device
        self._kept: Recent[Key, tuple[_Sealed, ...]] = Recent(limit_bytes, lambda parts: sum(p.bytes for p in parts))

    @contextlib.contextmanager
    def open(self, key: Key, make: Callable[[], tuple[Expected, ...]]) -> Iterator[tuple[Expected, ...]]:
        """The expected outputs, readable inside the `with` block only; computed on the first call."""
        parts = self._kept.find(key, lambda: tuple(_Sealed(part, self._device) for part in make()))
        opened: list[_Sealed] = []
        try:
            for part in parts:
                part.turn()
                opened.append(part)
            yield tuple(part.expected(self._device) for part in parts)
        finally:
            for part in opened:
                part.turn()

    def intact(self) -> bool:
        """Whether all encrypted references are unchanged: a kernel may have written far outside its buffers."""
        return all(part.intact() for parts in self._kept for part in parts)

    def clear(self) -> None:
        """Drop everything to free memory."""
        self._kept.clear()


class _Sealed:
    """One `Expected` whose tensors are encrypted; `turn` decrypts them, and encrypts them again."""

    def __init__(self, part: Expected, device: str) -> None:
        tensors = (part.truth, part.honest, part.compared)
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._part = part
        self._seed = secrets.randbits(62)
        self._large = self.bytes > SMALL_BYTES
        self._words: list[torch.Tensor] = []
        self._sum: list[int] = []
        if not self._large:
            self._part = _with(part, [tensor.to("cpu") for tensor in tensors])
            return
        moved = []
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            words = torch.zeros(-(-size // 8), dtype=torch.int64, device=device)
            view = words.view(torch.uint8)[:size].view(tensor.dtype).view(tensor.shape)
            view.copy_(tensor)
            self._words.append(words)
            moved.append(view)
        self._part = _with(part, moved)
        self.turn()
        self._sum = self._checksum()

    def turn(self) -> None:
        """Exclusive-or with the key stream."""
        if not self._large:
            return
        generator = torch.Generator(self._words[0].device).manual_seed(self._seed)
        for words in self._words:
            words.bitwise_xor_(torch.empty_like(words).random_(-(2**63), None, generator=generator))

    def intact(self) -> bool:
        return not self._large or self._checksum() == self._sum

    def _checksum(self) -> list[int]:
        return [int(words.sum()) for words in self._words]

    def expected(self, device: str) -> Expected:
        part = self._part
        if self._large:
            return part
        return _with(part, [tensor.to(device) for tensor in (part.truth, part.honest, part.compared)])


def _with(part: Expected, tensors: list[torch.Tensor]) -> Expected:
    truth, honest, compared = tensors
    return replace(part, truth=truth, honest=honest, compared=compared)
