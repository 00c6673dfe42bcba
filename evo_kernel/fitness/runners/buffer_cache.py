"""What the GPU process keeps between requests: drawn inputs, and buffers of plans that look alike. Within limits."""

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
"""Plans that are alike in it may use each other's arenas."""


_PAGE_BYTES = 2 << 20  # of device memory


class Inputs:
    """Drawn inputs by key, the most recent within `limit_bytes`. Whoever takes them must not write to them."""

    def __init__(self, limit_bytes: int) -> None:
        self._kept: Recent[Hashable, tuple[tuple[Input, ...], list[int]]] = Recent(limit_bytes, lambda o: size_of(o[0]))

    def of(self, key: Hashable, draw: Callable[[], tuple[Input, ...]]) -> tuple[Input, ...]:
        def make() -> tuple[tuple[Input, ...], list[int]]:
            return (made := draw()), checksum(made)

        return self._kept.find(key, make)[0]

    def intact(self) -> bool:
        """Whether everything kept is still what was drawn: a kernel may have written far outside its buffers."""
        return all(checksum(values) == sums for values, sums in self._kept)

    def clear(self) -> None:
        self._kept.clear()


class Arenas:
    """Arenas lent to one plan after another of the same layout. They come back poisoned."""

    def __init__(self, make: Callable[[CompiledPlan], Arena], limit_bytes: int) -> None:
        self._make, self._limit_bytes = make, limit_bytes
        self._free: OrderedDict[_Layout, list[Arena]] = OrderedDict()
        self._bytes = 0

    @contextlib.contextmanager
    def lent(self, plan: CompiledPlan, count: int) -> Iterator[list[Arena]]:
        """`count` arenas. After an exception none of them is used again."""
        key = (plan.plan.buffers, scratch_needs(plan))
        size = _held_bytes(key)
        shelf = self._free.get(key, [])
        found = [shelf.pop() for _ in range(min(count, len(shelf)))]
        for arena in found:  # a kernel of somebody else may have written far outside its own buffers meanwhile
            arena.mend_canaries()
        self._bytes -= size * len(found)
        found += [self._make(plan) for _ in range(count - len(found))]
        yield found
        for arena in found:
            arena.poison()
        if all(buffer.kind in ("input", "scratch") for buffer in plan.plan.buffers):
            self._free.setdefault(key, []).extend(found)
            self._free.move_to_end(key)
            self._bytes += size * len(found)
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
    """What one arena of a plan takes: its buffers and the scratch of its launches."""
    return _layout_bytes((plan.plan.buffers, scratch_needs(plan)))


def _held_bytes(layout: _Layout) -> int:
    """What an arena that lies by itself keeps from others."""
    return -(-_layout_bytes(layout) // _PAGE_BYTES) * _PAGE_BYTES


def _layout_bytes(layout: _Layout) -> int:
    buffers, needs = layout
    return sum(buffer.bytes for buffer in buffers) + sum(need.total for need in needs)


def checksum(values: Sequence[object]) -> list[int]:
    """One number a tensor: the sum of its words as whole numbers, wrapping. The device is waited for once."""
    sums = [
        _words(value).sum(dtype=torch.int64)
        for value in values
        if isinstance(value, torch.Tensor) and value.dtype not in (torch.complex64, torch.complex128)
    ]
    return torch.stack(sums).tolist() if sums else []


def _words(value: torch.Tensor) -> torch.Tensor:
    """A tensor as whole numbers: of 8 bytes where it lies in one piece, since fewer are sooner added up."""
    size = value.element_size()
    if value.is_contiguous() and value.numel() * size % 8 == 0 and value.storage_offset() * size % 8 == 0:
        return value.reshape(-1).view(torch.int64)
    return value.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])


def size_of(inputs: Sequence[Input]) -> int:
    return sum(value.numel() * value.element_size() for value in inputs if isinstance(value, torch.Tensor))
