"""Caches of the GPU process: drawn inputs, and arenas for plans with the same memory layout. Bounded in bytes."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch

from evo_kernel.fitness.plan.launch_plan import Buffer, CompiledPlan
from evo_kernel.fitness.runners.cuda_memory import Arena
from evo_kernel.fitness.runners.launch_limits import ScratchNeed, scratch_needs
from evo_kernel.lru_cache import Recent
from evo_kernel.tasks.task import Input

_Layout = tuple[tuple[Buffer, ...], tuple[ScratchNeed, ...]]
"""Plans with the same layout may reuse each other's arenas."""


_PAGE_BYTES = 2 << 20  # granularity of device memory


class Inputs:
    """Drawn inputs by key; the most recent ones within `limit_bytes`. Callers must not write to them."""

    def __init__(self, limit_bytes: int) -> None:
        self._kept: Recent[Hashable, tuple[tuple[Input, ...], list[int]]] = Recent(limit_bytes, lambda o: size_of(o[0]))

    def of(self, key: Hashable, draw: Callable[[], tuple[Input, ...]]) -> tuple[Input, ...]:
        def make() -> tuple[tuple[Input, ...], list[int]]:
            return (inputs := draw()), checksum(inputs)

        return self._kept.find(key, make)[0]

    def intact(self) -> bool:
        """Whether all cached inputs are unchanged: a kernel may have written far outside its buffers."""
        return all(checksum(values) == sums for values, sums in self._kept)

    def clear(self) -> None:
        self._kept.clear()


class Arenas:
    """Arenas lent to one plan after another of the same layout. Returned arenas are poisoned."""

    def __init__(self, make: Callable[[CompiledPlan], Arena], limit_bytes: int) -> None:
        self._make, self._limit_bytes = make, limit_bytes
        self._free: OrderedDict[_Layout, list[Arena]] = OrderedDict()
        self._bytes = 0

    @contextlib.contextmanager
    def lent(self, plan: CompiledPlan, count: int) -> Iterator[list[Arena]]:
        """Lend `count` arenas. After an exception none of them is reused."""
        key = (plan.plan.buffers, scratch_needs(plan))
        size = _held_bytes(key)
        shelf = self._free.get(key, [])
        lent = [shelf.pop() for _ in range(min(count, len(shelf)))]
        for arena in lent:  # another candidate's kernel may have written far outside its buffers
            arena.mend_canaries()
        self._bytes -= size * len(lent)
        lent += [self._make(plan) for _ in range(count - len(lent))]
        yield lent
        for arena in lent:
            arena.poison()
        if all(buffer.kind in ("input", "scratch") for buffer in plan.plan.buffers):
            self._free.setdefault(key, []).extend(lent)
            self._free.move_to_end(key)
            self._bytes += size * len(lent)
            self._trim()

    def clear(self) -> None:
        self._free.clear()
        self._bytes = 0

    def _trim(self) -> None:
        while self._bytes > self._limit_bytes and self._free:
            key, shelf = next(iter(self._free.items()))
            if shelf:
                shelf.pop()
                self._bytes -= _held_bytes(key)
            if not shelf:
                del self._free[key]


def plan_bytes(plan: CompiledPlan) -> int:
    """Size of one arena of a plan: its buffers and the scratch of its launches."""
    return _layout_bytes((plan.plan.buffers, scratch_needs(plan)))


def _held_bytes(layout: _Layout) -> int:
    """Memory that a separately mapped arena occupies."""
    return -(-_layout_bytes(layout) // _PAGE_BYTES) * _PAGE_BYTES


def _layout_bytes(layout: _Layout) -> int:
    buffers, needs = layout
    return sum(buffer.bytes for buffer in buffers) + sum(need.total for need in needs)


def checksum(values: Sequence[object]) -> list[int]:
    """One checksum per tensor: the wrapping sum of its words as integers. Synchronises the device once."""
    sums = [
        _words(value).sum(dtype=torch.int64)
        for value in values
        if isinstance(value, torch.Tensor) and value.dtype not in (torch.complex64, torch.complex128)
    ]
    return torch.stack(sums).tolist() if sums else []


def _words(value: torch.Tensor) -> torch.Tensor:
    """A tensor as integers; of 8 bytes if it is contiguous, since fewer words are summed faster."""
    size = value.element_size()
    if value.is_contiguous() and value.numel() * size % 8 == 0 and value.storage_offset() * size % 8 == 0:
        return value.reshape(-1).view(torch.int64)
    return value.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])


def size_of(inputs: Sequence[Input]) -> int:
    return sum(value.numel() * value.element_size() for value in inputs if isinstance(value, torch.Tensor))
