"""A plan's memory on the GPU: buffers and scratch between canary bands, constant tables; caches of it and of inputs."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # pyright: ignore[reportPrivateImportUsage]

from evo_kernel.fitness.plan.launch_plan import Aten, Buffer, CompiledPlan, Constant, View
from evo_kernel.fitness.plan.torch_operations import addresses_of, results_of, searching, table_of
from evo_kernel.fitness.runners.launch_limits import ScratchNeed, scratch_needs
from evo_kernel.lru_cache import Recent
from evo_kernel.tasks.layout import write
from evo_kernel.tasks.task import Input

CANARY_BYTES = 1024
POISON = 0xFF  # NaN in every floating-point type, -1 in signed integers
_FINITE = range(0x01, 0x78)  # with either sign: bytes whose words are finite in every floating-point type

_FINITE_BITS, _SET_BITS = (int.from_bytes(bytes([byte] * 8), signed=True) for byte in (0xF7, 0x01))
"""That random bytes may have, and must have, to be such ones."""


def other_poison() -> int:
    """A secret byte whose words are finite: where POISON gives NaN, results of this one differ from it."""
    return secrets.choice(_FINITE) | secrets.choice((0x00, 0x80))


def _sizes_of(plan: CompiledPlan) -> tuple[list[int], list[int]]:
    """Bytes of the plan's buffers and then of two kinds of scratch for each launch, and the alignment of the latter."""
    needs = scratch_needs(plan)
    aligns = [align for need in needs for align in (need.global_align, need.profile_align)]
    scratch = [size for need in needs for size in (need.global_bytes, need.profile_bytes)]
    padded = [size + align if size else 0 for size, align in zip(scratch, aligns, strict=True)]
    return [*(buffer.bytes for buffer in plan.plan.buffers), *padded], aligns


def _with_band(size: int) -> int:
    return CANARY_BYTES + (size + 511) // 512 * 512


def _starts_of(sizes: Sequence[int]) -> list[int]:
    """Where buffers begin in an arena."""
    return [CANARY_BYTES + start for start in accumulate(map(_with_band, sizes[:-1]), initial=0)][: len(sizes)]


@functools.cache
def _generator(device: torch.device) -> torch.Generator:
    """With a secret seed, for a whole process: to make one takes longer than to draw."""
    return torch.Generator(device).manual_seed(secrets.randbits(62))


class Arena:
    """Memory for one run of a plan: its buffers and the scratch of its launches, each between two canary bands.

    Arenas share no memory. Nothing except inputs survives `poison`. A buffer may lie elsewhere (`adopt`).
    """

    def __init__(self, plan: CompiledPlan, memory: Callable[[int], torch.Tensor]) -> None:
        """`memory` returns at least so many bytes; all of the mapping around buffers holds canaries."""
        self._buffers = len(plan.plan.buffers)
        self._sizes, self._aligns = _sizes_of(plan)
        scratch = [number for number, buffer in enumerate(plan.plan.buffers) if buffer.kind == "scratch"]
        workspaces = [number for number in range(self._buffers, len(self._sizes)) if self._sizes[number]]
        self._poisoned = [*scratch, *workspaces]
        self._inner = set(scratch) - {view.buffer for view in plan.plan.outputs}
        self._adopted: dict[int, torch.Tensor] = {}  # bytes of buffers that lie elsewhere
        self._starts = starts = _starts_of(self._sizes)
        self.memory = memory(sum(map(_with_band, self._sizes)) + CANARY_BYTES)
        total = self.memory.numel()
        ends = [0, *(start + size for start, size in zip(starts, self._sizes, strict=True))]
        self._bands = [self.memory[end:start] for end, start in zip(ends, [*starts, total], strict=True)]
        """What lies before, between and behind the buffers."""
        self.set_canary(other_poison())

    def bytes_of(self, buffer: int) -> torch.Tensor:
        if buffer in self._adopted:
            return self._adopted[buffer]
        start = self._starts[buffer]
        return self.memory[start : start + self._sizes[buffer]]

    def address(self, buffer: int) -> int:
        at_home = self.memory.data_ptr() + self._starts[buffer]
        return self._adopted[buffer].data_ptr() if buffer in self._adopted else at_home

    def adopt(self, view: View, value: torch.Tensor) -> bool:
        """Let a torch operation's result be the buffer of `view` where it lies, until `release`, if it is the whole of
        one; returns whether it is. No canaries are around it, and `poison` does not reach it."""
        size, storage = self._sizes[view.buffer], value.untyped_storage()
        is_whole = 0 < view.elements * view.item_bytes == size == storage.nbytes()
        is_alike = value.dtype == getattr(torch, view.dtype) and value.shape == view.shape
        if view.buffer not in self._inner or not (is_whole and is_alike and view.has_strides(value.stride())):
            return False
        here, start = storage.data_ptr(), self.memory.data_ptr()
        others = {memory.data_ptr() for memory in self._adopted.values()}
        if start <= here < start + self.memory.numel() or here in others:  # an argument, or an earlier result
            return False
        self._adopted[view.buffer] = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
        return True

    def release(self) -> None:
        """Have all buffers here again."""
        self._adopted.clear()

    def scratch(self, launch: int) -> tuple[int, int]:
        """Addresses of global and profile scratch of launch number `launch`; 0 if none is needed."""
        first = 2 * launch
        return self._scratch_address(first), self._scratch_address(first + 1)

    def _scratch_address(self, number: int) -> int:
        place, align = self._buffers + number, self._aligns[number]
        return -(-self.address(place) // align) * align if self._sizes[place] else 0

    def tensor(self, view: View) -> torch.Tensor:
        alone = from_dlpack(to_dlpack(self.bytes_of(view.buffer)))  # its storage ends with the buffer
        return _typed(alone, getattr(torch, view.dtype)).as_strided(view.shape, view.strides, view.offset)

    def poison(self, byte: int | None = POISON) -> None:
        """Overwrite everything except inputs; None: with secret bytes, each of its own, whose words are finite."""
        for place in self._poisoned:
            memory = self.bytes_of(place)
            memory.fill_(other_poison() if byte is None else byte)
            if byte is None:
                words = memory[: memory.numel() // 8 * 8].view(torch.int64)
                words.random_(-(1 << 63), None, generator=_generator(memory.device))
                words.bitwise_and_(_FINITE_BITS).bitwise_or_(_SET_BITS)

    def gaps_whole(self, views: Sequence[View]) -> torch.Tensor:
        """Whether bytes between the elements of one buffer's views are unchanged, as a tensor; does not synchronise."""
        copy = self.bytes_of(views[0].buffer).clone()
        for view in views:
            words = as_words(_typed(copy, getattr(torch, view.dtype)).as_strided(view.shape, view.strides, view.offset))
            write(words, torch.full((words.element_size(),), self.canary, dtype=torch.uint8).view(words.dtype)[0])
        return (copy == self.canary).all()

    def set_canary(self, byte: int) -> None:
        """Fill what no kernel may read or write: the bands now, gaps between the elements of inputs with these."""
        self.canary = byte
        for band in self._bands:
            band.fill_(byte)

    @staticmethod
    def canaries_whole(arenas: Sequence[Arena]) -> torch.Tensor:
        """Whether nothing was written outside any buffer, as a tensor. Waits for the GPU."""
        bands = [band for arena in arenas for band in arena._bands]
        canaries = [arena.canary for arena in arenas for _ in arena._bands]
        found = torch.cat(bands)
        counts, whole = torch.tensor([[*map(len, bands)], canaries], device=found.device)  # known to no kernel before
        return (found == whole.byte().repeat_interleave(counts, output_size=len(found))).all()

    def broken_canary(self) -> int | None:
        """Index of a buffer with a damaged canary band; None if all are intact."""
        whole = [bool((band == self.canary).all()) for band in self._bands]
        return None if all(whole) else max(0, whole.index(False) - 1)


class ConstantTable:
    """A constant table on the GPU, with addresses relative to an arena's memory."""

    def __init__(self, plan: CompiledPlan, node: Constant, device: str) -> None:
        starts = _starts_of(_sizes_of(plan)[0])
        self._view = node.view
        self._words = table_of(node, lambda one: starts[one.target] + one.offset).to(device)
        self._addresses = addresses_of(node).long().to(device) if node.relocations else None

    def write(self, arena: Arena) -> None:
        """Copy it to its place, addresses as those of this arena; may be captured."""
        target = arena.tensor(self._view)
        if self._addresses is None:
            target.copy_(self._words)
            return
        words, base = self._words.view(torch.int64), arena.memory.data_ptr()
        torch.add(words, self._addresses, alpha=base, out=target.view(torch.int64))


def overlaid(plans: Sequence[CompiledPlan], count: int, memory: Callable[[int], torch.Tensor]) -> list[list[Arena]]:
    """`count` arenas of each plan; those with the same number share their memory."""
    size = max(sum(map(_with_band, _sizes_of(plan)[0])) + CANARY_BYTES for plan in plans)
    blocks = [memory(size) for _ in range(count)]
    return [[Arena(plan, lambda _, block=block: block) for block in blocks] for plan in plans]


def as_words(values: torch.Tensor) -> torch.Tensor:
    """A view of the elements as integers of their size; of complex ones as pairs."""
    plain = torch.view_as_real(values) if values.is_complex() else values
    return plain.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()])


def _typed(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    usable = data.numel() // dtype.itemsize * dtype.itemsize
    return data[:usable].view(dtype)


def run_aten(node: Aten, tensors: Sequence[torch.Tensor], arena: Arena, in_place: bool) -> None:
    """Replay a torch operation. Its results are copied to the plan's views, unless, `in_place`, they can stay where
    they are, as in a program."""
    with searching(deterministic=True):
        results = results_of(node, tensors, "cuda")
    for view, value in zip(node.outputs, results, strict=True):
        if view is not None and isinstance(value, torch.Tensor):
            if in_place and arena.adopt(view, value):
                continue
            target = arena.tensor(view)
            if (target.data_ptr(), target.stride()) != (value.data_ptr(), value.stride()):
                target.copy_(value)


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
            arena.set_canary(other_poison())
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
