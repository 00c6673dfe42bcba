"""Tensor descriptors: values, handlers of their operations, and checks of the hardware's (TMA) requirements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evo_kernel.fitness.ir.atomics import ATOMIC_UPDATES, atomic
from evo_kernel.fitness.ir.device_functions import tf32
from evo_kernel.fitness.ir.engine import Frame, Machine, Unsupported, handles
from evo_kernel.fitness.ir.lanes import Lanes, Sum, Term, term_of
from evo_kernel.fitness.ir.loads import load
from evo_kernel.fitness.ir.memory import MemoryFault
from evo_kernel.fitness.ir.module import Operation
from evo_kernel.fitness.ir.stores import store
from evo_kernel.fitness.ir.types import IRError, Type

ALIGNMENT = 16
"""Base, all strides but the last, and a block's offset along the last axis must be multiples of so many bytes."""
MAX_SIZE, MAX_STRIDE = 1 << 32, 1 << 40  # elements, bytes (CUDA driver API, cuTensorMapEncodeTiled)


class DeviceDescriptor(Lanes):
    """A tensor descriptor: base address, sizes and strides (in elements) of each axis, for all programs."""

    __slots__ = ("base", "lines", "round_tf32", "sizes", "strides", "supported", "whole", "zeros")

    def __init__(
        self,
        type_: Type,
        base: Lanes,
        sizes: Sequence[Lanes],
        strides: Sequence[Lanes],
        *,
        zeros: bool = True,
        round_tf32: bool = False,
    ) -> None:
        super().__init__(type_, sum_=Sum(0))
        self.base, self.sizes, self.strides = base, tuple(sizes), tuple(strides)
        self.zeros, self.round_tf32 = zeros, round_tf32
        self.supported = False  # found by `check_use`
        self.whole: tuple[Lanes, Lanes, list[tuple[int, int]]] | None = None
        """Addresses and mask of a block within, at 0; by axis, the last place of one, and bytes between elements."""
        self.lines: dict[int, tuple[Sum, Sum]] = {}  # by axis: a block's elements, and their bytes if strides are equal

    @property
    def programs(self) -> int:
        return max(lanes.programs for lanes in (self.base, *self.sizes, *self.strides))

    def rows(self, index: torch.Tensor) -> DeviceDescriptor:
        if self.programs == 1:
            return self
        return DeviceDescriptor(
            self.type, self.base.rows(index), [s.rows(index) for s in self.sizes],
            [s.rows(index) for s in self.strides], zeros=self.zeros, round_tf32=self.round_tf32,
        )  # fmt: skip


def block_of(type_: Type) -> Type:
    """Element type and shape of the blocks that a descriptor moves."""
    if type_.pointee is None:
        raise IRError("a descriptor without a block type")
    return type_.pointee


def check_use(descriptor: DeviceDescriptor, indices: Sequence[Lanes], programs: torch.Tensor) -> None:
    """Raise MemoryFault if a GPU would fail with an illegal instruction, or if a value is undefined.

    `indices`: where a block begins; for gathered rows, their numbers and the column.
    """
    item = block_of(descriptor.type).item_bytes
    *strides, last = descriptor.strides
    known = () if descriptor.supported else (descriptor.base, *descriptor.sizes, *descriptor.strides)
    for value in (*known, *indices):
        if value.undefined is not None and bool(value.undefined.any()):
            raise MemoryFault("undefined", "moves a block by a descriptor or indices that are undefined")

    def demand(value: Lanes, least: int, most: int, unit: int, what: str) -> None:
        total = value.sum
        units = [total.constant, *(term.unit for term in total.terms)]
        if least <= total.low and total.high <= most and not any(one * unit % ALIGNMENT for one in units):
            return
        data = value.data.long()
        wrong = (data < least) | (data > most) | (data * unit % ALIGNMENT != 0)
        if bool(wrong.any()):
            place = int(wrong.nonzero()[0][0])
            program = int(programs[place]) if data.shape[0] > 1 else None
            number = int(data[place].reshape(-1)[0])
            message = f"uses a descriptor {what} is {number} ({item} bytes an element), which GPUs do not support"
            raise MemoryFault("misaligned", message, program)

    if not descriptor.supported:
        if bool((descriptor.base.data % ALIGNMENT != 0).any()):
            raise MemoryFault("misaligned", f"uses a descriptor whose base is not a multiple of {ALIGNMENT} bytes")
        for size in descriptor.sizes:
            demand(size, 1, MAX_SIZE - 1, ALIGNMENT, "one of whose sizes")
        for stride in strides:
            demand(stride, 0, MAX_STRIDE // item, item, "one of whose strides")
        demand(last, 1, 1, ALIGNMENT, "whose last stride")
        descriptor.supported = True
    demand(indices[-1], -MAX_SIZE, MAX_SIZE, item, "at a block whose last index")


@handles("tt.make_tensor_descriptor")
def _make_descriptor(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    rank = block_of(type_).rank
    zeros = operation.integer("padding", 1) != 2  # tt::PaddingOption: 1 is PAD_ZERO, 2 PAD_NAN
    return [
        DeviceDescriptor(type_, operands[0], operands[1 : 1 + rank], operands[1 + rank : 1 + 2 * rank], zeros=zeros)
    ]


def used_descriptor(machine: Machine, frame: Frame, descriptor: Lanes, indices: Sequence[Lanes]) -> DeviceDescriptor:
    if not isinstance(descriptor, DeviceDescriptor):
        raise IRError("a descriptor operation on a value that is not a descriptor")
    if machine.memory.strict:
        check_use(descriptor, indices, frame.programs)
    return descriptor


def described(descriptor: DeviceDescriptor, indices: Sequence[Lanes]) -> tuple[Lanes, Lanes]:
    """Addresses and mask of a block at some indices."""
    places = [number for index in indices if (number := index.scalar) is not None]
    if descriptor.whole is not None and len(places) == len(indices):
        pointer, mask, axes = descriptor.whole
        if all(0 <= place <= most for place, (most, _) in zip(places, axes, strict=True)):
            start = sum(place * step for place, (_, step) in zip(places, axes, strict=True))
            return Lanes(pointer.type, sum_=Sum(pointer.sum.constant + start, pointer.sum.terms)), mask
    block = block_of(descriptor.type)
    shape = block.shape or ()
    total, factors = descriptor.base.sum, []
    rank = len(shape)

    def lifted(value: Sum) -> Sum:
        return Sum(
            value.constant,
            tuple(Term(t.data.reshape(t.data.shape[0], *(1,) * rank), t.low, t.high, t.unit) for t in value.terms),
        )

    total = lifted(total)
    item = block.item_bytes
    for axis, (size, stride, index) in enumerate(zip(descriptor.sizes, descriptor.strides, indices, strict=True)):
        step = stride.sum
        if axis not in descriptor.lines:
            offsets = torch.arange(shape[axis]).reshape(1, *(-1 if a == axis else 1 for a in range(rank)))
            line = Sum(0, (Term(offsets, 0, shape[axis] - 1),) if shape[axis] > 1 else ())
            descriptor.lines[axis] = line, line.times(step.constant * item)
        line, in_bytes = descriptor.lines[axis]
        start, bound = lifted(index.sum), lifted(size.sum)
        place = start.plus(line)
        if step.terms:
            data = place.data(rank) * lifted(step).data(rank)
            total = total.plus(Sum(0, (term_of(data * item),)))
        else:
            total = total.plus(start.times(step.constant * item)).plus(in_bytes)
        if place.low < 0 or place.plus(bound.times(-1)).high >= 0:
            position = place.data(rank)
            inside = (position >= 0) & (position < bound.data(rank))
            if not bool(inside.all()):
                factors.append(inside)
    pointer = Lanes(Type("ptr", shape, Type(block.element)), sum_=total)
    mask = Lanes(Type("i1", shape), factors=tuple(factors))
    if len(places) == len(indices) and not factors and descriptor.programs == 1:
        sizes, strides = ([one.sum.constant for one in some] for some in (descriptor.sizes, descriptor.strides))
        axes = [(size - long, stride * item) for size, stride, long in zip(sizes, strides, shape, strict=True)]
        start = sum(place * step for place, (_, step) in zip(places, axes, strict=True))
        at_zero = Lanes(pointer.type, sum_=Sum(total.constant - start, total.terms))
        descriptor.whole = at_zero, mask, axes
    return pointer, mask


@handles("tt.descriptor_load")
def _descriptor_load(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    descriptor = used_descriptor(machine, frame, operands[0], operands[1:])
    pointer, mask = described(descriptor, operands[1:])
    block = block_of(descriptor.type)
    fill = torch.full((1,) * (block.rank + 1), 0.0 if descriptor.zeros else torch.nan).to(block.dtype)
    block_lanes = load(machine, frame, operation, pointer, mask, Lanes(block, fill), Type(block.element, block.shape))
    data = block_lanes.data
    if descriptor.round_tf32 and block.element == "f32":
        data = tf32(data)
    return [_refit(Lanes(block, data, undefined=block_lanes.undefined), type_)]


def _refit(value: Lanes, type_: Type) -> Lanes:
    """A block with leading axes of size 1 as a tensor of fewer axes, or vice versa."""
    if value.type.shape == type_.shape:
        return Lanes(type_, value.data, undefined=value.undefined)
    shape = type_.shape or ()
    undefined = value.undefined
    if undefined is not None:
        undefined = undefined.expand(undefined.shape[0], *(value.type.shape or ())).reshape(-1, *shape)
    return Lanes(type_, value.full().reshape(-1, *shape), undefined=undefined)


@handles("tt.descriptor_store", "tt.descriptor_reduce")
def _descriptor_store(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    descriptor = used_descriptor(machine, frame, operands[0], operands[1:-1])
    value = operands[-1]
    pointer, mask = described(descriptor, operands[1:-1])
    value = _refit(value, Type(value.type.element, block_of(descriptor.type).shape))
    if operation.name == "tt.descriptor_store":
        store(machine, frame, operation, pointer, value, mask)
        return []
    kind = operation.words[0]
    if kind in ("inc", "dec") or kind not in ATOMIC_UPDATES:
        raise Unsupported(f"tt.descriptor_reduce {kind}")
    update = ATOMIC_UPDATES[kind]
    atomic(machine, frame, operation, pointer, [value], mask, lambda old, new: update(old, new[0]), False)
    return []


@handles("tt.descriptor_gather", "tt.descriptor_scatter")
def _descriptor_rows(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Rows by a tensor of row numbers, columns from an offset; those outside read as the descriptor pads."""
    _, rows, column = operands[:3]
    descriptor = used_descriptor(machine, frame, operands[0], (rows, column))
    gather = operation.name.endswith("gather")
    type_ = operation.results[0].type if gather else operands[3].type
    width = (type_.shape or (1, 1))[1]
    row_stride, column_stride = (stride.sum for stride in descriptor.strides)
    if row_stride.terms or column_stride.terms or any(size.sum.terms for size in descriptor.sizes):
        raise Unsupported(f"{operation.name} through descriptors that differ between programs")
    item = type_.item_bytes
    places = rows.data.long().unsqueeze(-1)
    columns = column.data.long().reshape(-1, 1, 1) + torch.arange(width).reshape(1, 1, -1)
    addresses = places * (row_stride.constant * item) + columns * (column_stride.constant * item)
    addresses = addresses + descriptor.base.data.reshape(-1, 1, 1)
    height, length = (size.sum.constant for size in descriptor.sizes)
    inside = (places >= 0) & (places < height) & (columns >= 0) & (columns < length)
    pointer = Lanes(Type("ptr", type_.shape, Type(type_.element)), addresses, undefined=None)
    mask = Lanes(Type("i1", type_.shape), inside)
    if gather:
        fill = Lanes(type_, torch.full((1, 1, 1), 0.0 if descriptor.zeros else torch.nan).to(type_.dtype))
        return [load(machine, frame, operation, pointer, mask, fill, type_)]
    store(machine, frame, operation, pointer, operands[3], mask)
    return []
