"""Tensor descriptors as values, and checks of the hardware's (TMA) requirements for descriptors used by a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evo_kernel.fitness.ir.lanes import Lanes, Sum
from evo_kernel.fitness.ir.memory import MemoryFault
from evo_kernel.fitness.ir.types import IRError, Type

ALIGNMENT = 16
"""Base, all strides but the last, and a block's offset along the last axis must be multiples of so many bytes."""
MAX_SIZE, MAX_STRIDE = 1 << 32, 1 << 40  # elements, bytes (CUDA driver API, cuTensorMapEncodeTiled)


class DeviceDescriptor(Lanes):
    """A tensor descriptor: base address, sizes and strides (in elements) of each axis, for all programs."""

    __slots__ = ("base", "block", "round_tf32", "sizes", "strides", "zeros")

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

    @property
    def programs(self) -> int:
        return max(lanes.programs for lanes in (self.base, *self.sizes, *self.strides))

    def rows(self, index: torch.Tensor) -> DeviceDescriptor:
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
    for value in (descriptor.base, *descriptor.sizes, *descriptor.strides, *indices):
        if value.undefined is not None and bool(value.undefined.any()):
            raise MemoryFault("undefined", "moves a block by a descriptor or indices that are undefined")

    def demand(value: Lanes, least: int, most: int, unit: int, what: str) -> None:
        data = value.data.long()
        wrong = (data < least) | (data > most) | (data * unit % ALIGNMENT != 0)
        if bool(wrong.any()):
            place = int(wrong.nonzero()[0][0])
            program = int(programs[place]) if data.shape[0] > 1 else None
            number = int(data[place].reshape(-1)[0])
            message = f"uses a descriptor {what} is {number} ({item} bytes an element), which GPUs do not support"
            raise MemoryFault("misaligned", message, program)

    if bool((descriptor.base.data % ALIGNMENT != 0).any()):
        raise MemoryFault("misaligned", f"uses a descriptor whose base is not a multiple of {ALIGNMENT} bytes")
    for size in descriptor.sizes:
        demand(size, 1, MAX_SIZE - 1, ALIGNMENT, "one of whose sizes")
    for stride in strides:
        demand(stride, 0, MAX_STRIDE // item, item, "one of whose strides")
    demand(last, 1, 1, ALIGNMENT, "whose last stride")
    demand(indices[-1], -MAX_SIZE, MAX_SIZE, item, "at a block whose last index")
