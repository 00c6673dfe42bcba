"""Caches references, shared by candidates: expected outputs, in host memory or encrypted on a GPU.

Sharing needs the same seeds for several evaluations. They come from a secret pool, and are replaced before the answers
reveal which values they draw. No candidate's kernel runs in host memory. On a GPU, copying a large reference from the
host takes longer than the check. So it stays there, exclusive-ored with a key stream from a secret seed that only the
host has. It is decrypted only for the comparison, after the candidate's kernels; freed memory is overwritten before the
next kernel. Small references stay on the host, which is faster.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import torch

from evo_kernel.fitness.correctness.error_bounds import Expected
from evo_kernel.lru_cache import Recent

ANSWERS = 16
"""After so many answers about a case its seeds are drawn anew."""
_TOLD_BYTES = 64
"""More than the times of one answer can tell: a kernel may wait for as long as a part of its output says."""


class SeedPool:
    """Secret seeds by case and regime. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn: dict[tuple[str, str], int] = {}
        self._answers: Counter[str] = Counter()

    def seed(self, case: str, regime: str) -> int:
        """The seed of a case and regime, constant until `answered` replaces it."""
        with self._lock:
            return self._drawn.setdefault((case, regime), fresh_seed())

    def answered(self, case: str, shows_values: bool, timed_bytes: int | None = None) -> None:
        """Count an answer about a case. Replaces its seeds if values, errors or times could reveal inputs or outputs.

        `timed_bytes`: of the outputs, if the answer holds times; outputs of a kilobyte or more last for all ANSWERS.
        """
        answers = ANSWERS if timed_bytes is None else min(ANSWERS, timed_bytes // _TOLD_BYTES)
        with self._lock:
            self._answers[case] += 1
            if shows_values or self._answers[case] >= answers:
                del self._answers[case]
                self._drawn = {key: seed for key, seed in self._drawn.items() if key[0] != case}


def fresh_seed() -> int:
    return secrets.randbits(62)


class References:
    """Expected outputs by (case, seed, regime); the most recent within `limit_bytes` of host memory. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._lock = threading.Lock()
        self._kept: Recent[tuple[str, int, str], tuple[Expected, ...]] = Recent(limit_bytes, _size)
        self._making: dict[tuple[str, int, str], threading.Lock] = {}

    def of(self, case: str, seed: int, regime: str, make: Callable[[], tuple[Expected, ...]]) -> tuple[Expected, ...]:
        """The expected outputs, computed on the first call; concurrent callers wait."""
        key = (case, seed, regime)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                known = self._kept.get(key)
            expected = make() if known is None else known
            with self._lock:
                self._making.pop(key, None)
                return self._kept.put(key, expected)


def _size(parts: tuple[Expected, ...]) -> int:
    return sum(t.numel() * t.element_size() for p in parts for t in p.tensors)


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
        self.bytes = _size((part,))
        self._part = part
        self._seed = secrets.randbits(62)
        self._large = self.bytes > SMALL_BYTES
        self._words: list[torch.Tensor] = []
        self._sum: list[int] = []
        if not self._large:
            self._part = part.with_tensors([tensor.to("cpu") for tensor in part.tensors])
            return
        moved = []
        for tensor in part.tensors:
            size = tensor.numel() * tensor.element_size()
            words = torch.zeros(-(-size // 8), dtype=torch.int64, device=device)
            view = words.view(torch.uint8)[:size].view(tensor.dtype).view(tensor.shape)
            view.copy_(tensor)
            self._words.append(words)
            moved.append(view)
        self._part = part.with_tensors(moved)
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
        return part.with_tensors([tensor.to(device) for tensor in part.tensors])
