"""Device memory of a launch: buffers in one address space, with shadow memory that detects races and undefined reads.

An address is an int64: (buffer + 1) << BASE_BITS, plus the byte offset. An access whose lanes form arithmetic
progressions is a strided view of the buffer; others are gathered by index. Shadow arrays of a buffer, created when
needed:

    defined   whether the element was ever written (scratch and outputs start undefined)
    writer    program that stored it last in this launch, plus one
    reader    program that loaded it in this launch, plus one; MANY if several did
    writer_since, reader_since    how often that program had released its accesses before (none: never)

It is a race if a program stores to an element that another program stored or loaded in the same launch, or loads one
that another stored, unless the value stays the same, or the first program released its access by an atomic operation
and the second one acquired by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import torch

from evo_kernel.fitness.ir.lanes import Lanes, Sum, Term

_Address = TypeVar("_Address", int, torch.Tensor)

BASE_BITS = 40
PADDING = 1 << 16
"""Bytes on both sides of a buffer that inactive lanes may read; an active lane there is out of bounds."""
MANY = -1
POISON = 0xFF
MOST_SHIFTED = 1 << 12
"""Elements of a sum whose parts are kept, because loops shift it."""
MAX_WINDOWS = 128
"""Maximal number of rows that are copied one by one as views: gathering costs about ten times as much per element."""


class MemoryFault(Exception):
    """A fault that no correct kernel has. `kind`: out_of_bounds, misaligned, race or undefined."""

    def __init__(self, kind: str, message: str, program: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.program = kind, program


class DeviceBuffer:
    """One allocation. `storage` holds PADDING bytes, then the data, then PADDING bytes."""

    def __init__(self, size: int, *, defined: bool, content: int = POISON, name: str = "") -> None:
        self.size, self.name = size, name
        self.storage = torch.full((size + 2 * PADDING,), content, dtype=torch.uint8)
        self._unit = 0
        self.defined: torch.Tensor | None = None if defined else torch.zeros(0, dtype=torch.bool)
        self.writer: torch.Tensor | None = None
        self.reader: torch.Tensor | None = None
        self.writer_since: torch.Tensor | None = None
        self.reader_since: torch.Tensor | None = None
        self.track_reads = False
        self.uses: frozenset[str] | None = None  # loads, indexes, stores: of the launch, by its text; None: any
        self.changed = False  # a kernel may have stored here
        self.by_copies = False  # this launch stores blocks of shared memory here
        self.words: torch.Tensor | None = None  # for each 8 bytes of the storage, whether a table has an address there
        self.targets: frozenset[int] = frozenset()  # numbers of the buffers that these addresses are in

    @property
    def data(self) -> torch.Tensor:
        return self.storage[PADDING : PADDING + self.size]

    def begin_launch(self, tracks_reads: bool, uses: frozenset[str] | None = None) -> None:
        """Clear writers and readers; definedness stays."""
        self.changed = self.changed or self.writer is not None
        self.writer = self.reader = self.writer_since = self.reader_since = None
        self.track_reads, self.uses, self.by_copies = tracks_reads, uses, False

    def require(self, use: str) -> None:
        """Raise MemoryFault if the launch has no such use for the buffer by its text.

        Reads are tracked, and traffic is counted, for the buffers of the arguments that addresses derive from.
        """
        if use == "stores" and self.words is not None:
            raise MemoryFault("out_of_bounds", "stores to a table of addresses, which kernels may only read")
        if self.uses is not None and use not in self.uses:
            does = "stores to" if use == "stores" else "loads from"
            raise MemoryFault(
                "out_of_bounds", f"{does} a buffer by an address made from another one's, or from numbers"
            )

    def unit(self, item: int) -> int:
        """Bytes per shadow element, a divisor of `item`; refined permanently if necessary, by every access: so after a
        survey of all launches it stays."""
        if self._unit == 0:
            self._unit = min(item, 8)
            if self.defined is not None:
                self.defined = torch.zeros(self.shadow_elements(item), dtype=torch.bool)
        elif item % self._unit:
            finer = math.gcd(item, self._unit)
            times = self._unit // finer
            for name in ("defined", "writer", "reader", "writer_since", "reader_since"):
                if (shadow := getattr(self, name)) is not None:
                    setattr(self, name, shadow.repeat_interleave(times)[: self.shadow_elements(finer)])
            self._unit = finer
        return self._unit

    def shadow(self, name: str, item: int) -> torch.Tensor:
        """The marks of a name, created when first needed; `defined` where not all is."""
        unit = self.unit(item)
        marks = getattr(self, name)
        if marks is None:
            marks = torch.zeros(self.shadow_elements(unit), dtype=torch.int32)
            setattr(self, name, marks)
        return marks

    def marks(self) -> torch.Tensor:
        """A boolean tensor of False for each shadow element."""
        return torch.zeros(self.shadow_elements(self.unit(1 << 30)), dtype=torch.bool)

    def refined(self, marks: torch.Tensor) -> torch.Tensor:
        """Marks that were made when shadow elements may have been larger."""
        count = self.shadow_elements(self.unit(1 << 30))
        return marks.repeat_interleave(-(-count // marks.numel()))[:count]

    def defined_bytes(self) -> torch.Tensor | None:
        """A boolean for each byte; None if all are defined."""
        if self.defined is None:
            return None
        if self._unit == 0:
            return torch.zeros(self.size, dtype=torch.bool)
        return self.defined.repeat_interleave(self._unit)[PADDING : PADDING + self.size]

    def define(self, offset: int, size: int) -> None:
        """Mark bytes as written by something other than a kernel."""
        if self.defined is None:
            return
        unit = self.unit(1 if offset % 4 or size % 4 else math.gcd(offset or 8, size or 8, 8))
        self.defined[(PADDING + offset) // unit : (PADDING + offset + size) // unit] = True
        inside = self.defined[PADDING // unit : (PADDING + self.size) // unit]
        if bool(inside.all()):
            self.defined = None

    def shadow_elements(self, unit: int) -> int:
        return -(-(self.size + 2 * PADDING) // unit)


@dataclass(frozen=True)
class MemoryAccess:
    """Lanes of a load or store in one buffer. Offsets and steps in bytes, from the start of the storage.

    `progressions` are (axis, size, step); `indices` vary in other ways. Lane addresses are offset + both.
    """

    buffer: DeviceBuffer
    offset: int
    progressions: tuple[tuple[int, int, int], ...]
    indices: tuple[Term, ...]
    rank: int  # number of axes, including that of programs

    @property
    def disjoint(self) -> bool:
        """Whether different lanes access different elements; known only if all are progressions."""
        if self.indices:
            return False
        reach = 0
        for _, size, step in sorted(self.progressions, key=lambda p: p[2]):
            if step <= reach:
                return False
            reach += (size - 1) * step
        return True

    def view(self, data: torch.Tensor, item: int, inner: int = 1) -> torch.Tensor:
        """A strided view of elements of `item` bytes, if there are only progressions; axes as the value's.

        `inner`: consecutive elements of one lane, as a last axis if above 1.
        """
        sizes, strides = [1] * self.rank, [0] * self.rank
        for axis, size, step in self.progressions:
            sizes[axis], strides[axis] = size, step // item
        if inner > 1:
            sizes.append(inner)
            strides.append(1)
        return data.as_strided(sizes, strides, self.offset // item)

    def gathered(self, data: torch.Tensor, item: int, inner: int = 1) -> torch.Tensor:
        """A copy of the lanes; axes as the value's (size 1 where lanes share an element)."""
        if not self.indices:
            return self.view(data, item, inner)
        index = self.indices[0].data
        for term in self.indices[1:]:
            index = index + term.data
        taken = {axis for axis, size in enumerate(index.shape) if size > 1}
        windows = [p for p in self.progressions if p[0] not in taken]
        for axis, size, step in self.progressions:
            if axis in taken:
                index = index + _arange(axis, size, step, self.rank)
        index = index // item if item > 1 else index
        low = int(index.min())
        flat = (index - low).reshape(-1)
        sizes, strides = [p[1] for p in windows], [p[2] // item for p in windows]
        if inner > 1:
            sizes, strides = [*sizes, inner], [*strides, 1]
        start = self.offset // item + low
        if not sizes:
            return torch.take(data[start:], flat).reshape(index.shape)
        if flat.numel() <= MAX_WINDOWS and math.prod(sizes) >= 256:
            rows = torch.stack([data.as_strided(sizes, strides, start + n) for n in flat.tolist()])
        else:
            reach = int(flat.max()) + 1
            rows = data.as_strided([reach, *sizes], [1, *strides], start)[flat]
        kept = sorted(taken)
        rows = rows.reshape(*(index.shape[axis] for axis in kept), *sizes)
        order = [*kept, *(p[0] for p in windows)]
        where = sorted(range(len(order)), key=lambda n: order[n])
        rows = rows.permute(*where, *range(len(order), rows.dim()))
        shape = [1] * self.rank
        for position, axis in enumerate(sorted(order)):
            shape[axis] = rows.shape[position]
        return rows.reshape(*shape, *([inner] if inner > 1 else []))

    def by_program(self, count: int) -> list[tuple[int, int, MemoryAccess]] | None:
        """(first program, end, access) of ranges of programs whose lanes are progressions; None if there are none."""
        if any(term.support != (0,) for term in self.indices):
            return None
        starts = torch.full((count,), self.offset, dtype=torch.int64)
        for term in self.indices:
            starts = starts + term.data.reshape(-1)
        inner = tuple(p for p in self.progressions if p[0] != 0)
        for _, size, step in (p for p in self.progressions if p[0] == 0):
            starts = starts + torch.arange(size) * step
        return [
            (
                first,
                end,
                MemoryAccess(
                    self.buffer,
                    int(starts[first]),
                    (*(((0, end - first, step),) if end - first > 1 else ()), *inner),
                    (),
                    self.rank,
                ),
            )
            for first, end, step in _runs(starts)
        ]

    def offsets(self) -> torch.Tensor:
        """Byte offsets of all lanes in the storage; axes as the value's."""
        offsets = torch.full((1,) * self.rank, self.offset, dtype=torch.int64)
        for axis, size, step in self.progressions:
            offsets = offsets + _arange(axis, size, step, self.rank)
        for term in self.indices:
            offsets = offsets + term.data
        return offsets


def _runs(starts: torch.Tensor) -> list[tuple[int, int, int]]:
    """(first, end, step) of the longest arithmetic progressions of consecutive numbers."""
    if starts.numel() == 1:
        return [(0, 1, 0)]
    steps = (starts[1:] - starts[:-1]).tolist()
    runs, first = [], 0
    while first < len(steps) + 1:
        last = first + 1
        if first < len(steps) and steps[first] > 0:
            while last < len(steps) and steps[last] == steps[first]:
                last += 1
            last += 1
        runs.append((first, last, steps[first] if last - first > 1 else 0))
        first = last
    return runs


def _arange(axis: int, size: int, step: int, rank: int) -> torch.Tensor:
    shape = [1] * rank
    shape[axis] = size
    return (torch.arange(size) * step).reshape(shape)


class DeviceMemory:
    """All buffers of a plan.

    `strict`: for kernels that are judged. Otherwise the padding of a buffer is zeros that any lane may access, races
    are allowed, and every value is defined.

    `zeroed`: None, or: loads with a mask and without `other` give 0 where the mask is off; those that did, as (id of
    the module, ordinal), are added.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self.zeroed: set[tuple[int, int]] | None = None
        self.buffers: list[DeviceBuffer] = []
        self._latest: tuple[Sum, tuple[int, int, int], MemoryAccess | None] | None = None

    def add(self, size: int, *, defined: bool, name: str = "") -> int:
        """Add a buffer of poison and return its number; `defined`: its content will be given completely. `name`: for
        messages."""
        number, content = len(self.buffers), POISON if self.strict else 0
        name = name or f"buffer {number}"
        self.buffers.append(DeviceBuffer(size, defined=defined, content=content, name=name))
        return number

    @staticmethod
    def address(buffer: int, offset: int = 0) -> int:
        return ((buffer + 1) << BASE_BITS) + offset

    def buffer_at(self, address: int) -> tuple[DeviceBuffer, int] | None:
        """The buffer for an address, and its number; the offset may be outside the buffer."""
        number = owner_of(address)
        return (self.buffers[number], number) if 0 <= number < len(self.buffers) else None

    def access(self, pointer: Sum, item: int, rank: int, slack: int) -> MemoryAccess | None:
        """All lanes as one access; None if they are not within one buffer and `slack` bytes on both sides."""
        how = (item, rank, slack)  # the observer and the handler ask for the same access
        if self._latest is None or self._latest[0] is not pointer or self._latest[1] != how:
            self._latest = pointer, how, self._access(pointer, *how)
        return self._latest[2]

    def _access(self, pointer: Sum, item: int, rank: int, slack: int) -> MemoryAccess | None:
        owner = self.buffer_at(pointer.low)
        if owner is None:
            return None
        buffer, number = owner
        base = self.address(number)
        slack = slack if self.strict else PADDING
        if pointer.low - base < -slack or pointer.high - base + item > buffer.size + slack:
            pointer = pointer.exact()
            if pointer.low - base < -slack or pointer.high - base + item > buffer.size + slack:
                return None
        few = sum(term.data.numel() for term in pointer.terms) <= MOST_SHIFTED
        start, progressions, indices = (_split if few else _split.__wrapped__)(pointer.terms, item)
        offset = pointer.constant - base + PADDING + start
        if any(term.unit % item and bool((term.data % item != 0).any()) for term in indices):
            return None  # the slow path reports the misaligned lane, or that the sum is aligned
        if offset % item:
            return None
        buffer.unit(item)
        return MemoryAccess(buffer, offset, progressions, indices, rank)

    def describe(self, address: int) -> str:
        """Describe where an address is."""
        owner = self.buffer_at(address)
        if owner is None:
            return "at no buffer's address"
        buffer, number = owner
        offset = address - self.address(number)
        if offset < 0:
            return f"{-offset} bytes before {buffer.name}, which has {buffer.size} bytes"
        beyond = offset - buffer.size
        where = (
            f"at byte {offset}" if beyond < 0 else f"{beyond} bytes behind the end" if beyond else "just behind the end"
        )
        return f"{where} of {buffer.name}, which has {buffer.size} bytes"


@lru_cache(maxsize=256)
def _split(terms: tuple[Term, ...], item: int) -> tuple[int, tuple[tuple[int, int, int], ...], tuple[Term, ...]]:
    """Where progressions begin, the progressions of items, and the terms that are none: of a sum that a loop shifts."""
    start, progressions, indices = 0, [], []
    for term in terms:
        if (progression := term.progression()) is not None and progression[2] % item == 0:
            progressions.append((progression[0], term.data.numel(), progression[2]))
            start += progression[1]
        else:
            indices.append(term)
    return start, tuple(progressions), tuple(indices)


@dataclass(frozen=True)
class Scattered:
    """Active lanes of an access, one by one: flat byte addresses and program ids, and their lanes."""

    addresses: torch.Tensor
    active: torch.Tensor | None  # None: all
    every_program: torch.Tensor  # of all lanes, active or not

    @cached_property
    def programs(self) -> torch.Tensor:
        flat = self.every_program.reshape(-1)
        return flat if self.active is None else flat[self.active]

    def by_buffer(
        self, memory: DeviceMemory, item: int
    ) -> list[tuple[DeviceBuffer, torch.Tensor, torch.Tensor | None]]:
        """(buffer, element offsets in its storage, lanes). `item`: bytes, a power of two. Raises MemoryFault."""
        if self.addresses.numel() == 0:
            return []
        lowest, highest = (int(end) for end in self.addresses.aminmax())
        groups = []
        for number, some in self._owners(lowest, highest):
            addresses = self.addresses if some is None else self.addresses[some]
            size = memory.buffers[number].size if 0 <= number < len(memory.buffers) else -1
            offsets = addresses - DeviceMemory.address(number)
            slack = PADDING if size >= 0 and not memory.strict else 0
            low, high = lowest - DeviceMemory.address(number), highest - DeviceMemory.address(number)
            within = -slack <= low and high + item <= size + slack  # all lanes, if they are of this buffer
            outside = None if within else (offsets < -slack) | (offsets + item > size + slack)
            if outside is not None and bool(outside.any()):
                first = int(outside.nonzero()[0])
                programs = self.programs if some is None else self.programs[some]
                raise MemoryFault(
                    "out_of_bounds",
                    f"accesses {item} bytes {memory.describe(int(addresses[first]))}",
                    int(programs[first]),
                )
            if item > 1 and bool((odd := (offsets & (item - 1)) != 0).any()):
                first = int(odd.nonzero()[0])
                raise MemoryFault(
                    "misaligned",
                    f"accesses {item} bytes {memory.describe(int(addresses[first]))}, which is not aligned to them",
                    int((self.programs if some is None else self.programs[some])[first]),
                )
            memory.buffers[number].unit(item)
            groups.append((memory.buffers[number], (offsets + PADDING) >> (item.bit_length() - 1), some))
        return groups

    def _owners(self, lowest: int, highest: int) -> list[tuple[int, torch.Tensor | None]]:
        """Numbers of the buffers and the lanes in each; None: all. Sorting takes longer than all else done here."""
        if owner_of(lowest) == owner_of(highest):
            return [(owner_of(lowest), None)]
        numbers = owner_of(self.addresses)
        return [(number, (numbers == number).nonzero().squeeze(1)) for number in torch.unique(numbers).tolist()]


def owner_of(address: _Address) -> _Address:
    """The number of the buffer near an address, or near each of many; there may be none of that number."""
    return ((address + (1 << (BASE_BITS - 1))) >> BASE_BITS) - 1


RAW_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def typed(buffer: DeviceBuffer, dtype: torch.dtype) -> torch.Tensor:
    """The storage as a view of elements of a type, cut to whole elements; booleans as bytes."""
    storage, item = buffer.storage, dtype.itemsize
    return storage[: storage.numel() // item * item].view(torch.int8 if dtype is torch.bool else dtype)


def scattered(pointer: Lanes, mask: torch.Tensor | None, programs: torch.Tensor, shape: Sequence[int]) -> Scattered:
    """Lanes of an access one by one. `shape`: of all lanes, programs first; `programs`: their ids."""
    addresses = pointer.data.expand(tuple(shape))
    ids = programs.reshape(-1, *(1,) * (len(shape) - 1)).expand(tuple(shape))
    if mask is None:
        return Scattered(addresses.reshape(-1), None, ids)
    active = mask.expand(tuple(shape)).reshape(-1)
    return Scattered(addresses.reshape(-1)[active], active, ids)


def unit_places(places: torch.Tensor, item: int, unit: int) -> torch.Tensor:
    """Shadow elements (as a last axis) of items at some positions of a storage."""
    times = item // unit
    return (places * times).unsqueeze(-1) + torch.arange(times)
