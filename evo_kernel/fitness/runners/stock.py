"""What the GPU process keeps between requests: drawn inputs, and buffers of plans that look alike. Within limits."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch

from evo_kernel.fitness.plan import CompiledPlan
from evo_kernel.fitness.runners.clock import Buffers
from evo_kernel.tasks.task import Input


class Inputs:
    """Drawn inputs by key, the most recent within `limit_bytes`. Whoever takes them must not write to them."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[Hashable, tuple[Input, ...]] = OrderedDict()
        self._sums: dict[Hashable, list[int]] = {}
        self._bytes = 0

    def of(self, key: Hashable, draw: Callable[[], tuple[Input, ...]]) -> tuple[Input, ...]:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        made = self._kept[key] = draw()
        self._sums[key] = checksum(made)
        self._bytes += size_of(made)
        while self._bytes > self._limit_bytes and len(self._kept) > 1:
            old, values = self._kept.popitem(last=False)
            del self._sums[old]
            self._bytes -= size_of(values)
        return made

    def intact(self) -> bool:
        """Whether everything kept is still what was drawn: a kernel may have written far outside its buffers."""
        return all(checksum(values) == self._sums[key] for key, values in self._kept.items())

    def clear(self) -> None:
        self._kept.clear()
        self._sums.clear()
        self._bytes = 0


class Arenas:
    """Buffers lent to one plan after another of the same layout. They come back poisoned."""

    def __init__(self, make: Callable[[CompiledPlan], Buffers], limit_bytes: int) -> None:
        self._make, self._limit_bytes = make, limit_bytes
        self._free: OrderedDict[Hashable, list[Buffers]] = OrderedDict()
        self._bytes = 0

    @contextlib.contextmanager
    def lent(self, plan: CompiledPlan, count: int) -> Iterator[list[Buffers]]:
        """`count` arenas, their scratch poisoned. After an exception none of them is used again."""
        size, key = plan_bytes(plan), plan.plan.buffers
        shelf = self._free.get(key, [])
        found = [shelf.pop() for _ in range(min(count, len(shelf)))]
        for arena in found:  # a kernel of somebody else may have written far outside its own buffers meanwhile
            arena.mend_canaries()
        self._bytes -= size * len(found)
        found += [self._make(plan) for _ in range(count - len(found))]
        for arena in found:
            arena.poison(plan)
        yield found
        for arena in found:
            arena.poison(plan)
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
                self._bytes -= sum(buffer.bytes for buffer in key)  # type: ignore[attr-defined]
            if not shelf:
                del self._free[key]


def plan_bytes(plan: CompiledPlan) -> int:
    return sum(buffer.bytes for buffer in plan.plan.buffers)


def checksum(values: Sequence[object]) -> list[int]:
    """One number a tensor: the sum of its words as whole numbers, wrapping."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [
        value.view(kinds[value.element_size()]).sum(dtype=torch.int64)
        for value in values
        if isinstance(value, torch.Tensor) and value.dtype not in (torch.complex64, torch.complex128)
    ]
    return torch.stack(sums).tolist() if sums else []


def size_of(inputs: Sequence[Input]) -> int:
    return sum(value.numel() * value.element_size() for value in inputs if isinstance(value, torch.Tensor))
