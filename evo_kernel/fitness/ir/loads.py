"""Handler of loads: as strided views where addresses are regular, else lane by lane."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evo_kernel.fitness.ir import hint_checks
from evo_kernel.fitness.ir.access_checks import (
    access_shape,
    check_active_lanes,
    none_if_false,
    record_reads,
    require_defined_access,
    shadow_units,
    undefined_at,
    use_of,
)
from evo_kernel.fitness.ir.engine import Frame, Machine, handles
from evo_kernel.fitness.ir.lanes import AddressWord, Lanes, any_marked, nothing, zeros
from evo_kernel.fitness.ir.memory import PADDING, RAW_DTYPES, scattered, typed
from evo_kernel.fitness.ir.module import Operation
from evo_kernel.fitness.ir.types import Type


@handles("tt.load")
def _load(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    pointer = operands[0]
    mask = operands[1] if len(operands) > 1 else None
    other = operands[2] if len(operands) > 2 else None
    value = load(machine, frame, operation, pointer, mask, other, operation.results[0].type)
    return [hint_checks.loaded(pointer, mask, value)]


def load(
    machine: Machine,
    frame: Frame,
    operation: Operation,
    pointer: Lanes,
    mask: Lanes | None,
    other: Lanes | None,
    type_: Type,
) -> Lanes:
    """Elements at addresses; `other`, or undefined, where the mask is off."""
    require_defined_access(machine, pointer, mask, "loads")
    torn = None
    if pointer.promised is not None or (mask is not None and mask.promised is not None):
        torn = hint_checks.torn(pointer, mask, type_.item_bytes, access_shape(frame, type_, pointer, mask))
    if torn is not None:  # replaces what a vector access loads there
        loaded = load(machine, frame, operation, pointer.alone(), mask and mask.alone(), other, type_)
        return Lanes(type_, loaded.data, undefined=any_marked(loaded.undefined, torn))
    known = True if mask is None else mask.boolean()
    if known is True:
        mask = None
    if machine.latest is not None:
        machine.latest.check(operation, pointer, mask, frame.programs, type_)
    if machine.observer is not None and known is not False:
        machine.observer.access(operation, pointer, mask, frame.programs, type_.item_bytes, type_.shape or ())
    if mask is not None and other is None and (zeroed := machine.memory.zeroed) is not None:
        other = zeros(type_)
        if known is False or not bool(mask.data.all()):
            zeroed.add((id(machine.module), operation.ordinal))
    if known is False:
        return other if other is not None else nothing(type_)
    if other is None and not machine.memory.strict:
        other = nothing(type_)
    item, rank = type_.item_bytes, type_.rank + 1
    access = machine.memory.access(pointer.sum, item, rank, PADDING // 2 if mask is not None else 0)
    only_addresses = machine.skips_floats and type_.is_float
    words = None
    if access is None or access.buffer.track_reads or access.buffer.words is not None:
        loaded = _load_scattered(machine, frame, pointer, mask, type_, only_addresses)
        if loaded is None:
            return nothing(type_)
        data, undefined, words = loaded
    else:
        access.buffer.require(use_of(type_))
        if mask is not None and machine.memory.strict:
            check_active_lanes(machine, frame, access, mask, pointer, item)
        if only_addresses:
            return nothing(type_)
        narrow = type_.element.startswith("f8")  # torch cannot gather 8-bit floats
        data = access.gathered(typed(access.buffer, torch.int8 if narrow else type_.dtype), item)
        data = data.contiguous().view(type_.dtype) if narrow else data
        undefined = undefined_at(access, item)
    if type_.element == "ptr" and machine.memory.strict:
        words = torch.zeros_like(data, dtype=torch.bool) if words is None else words
        return Lanes(type_, data, undefined=any_marked(undefined, ~words))
    if words is None:
        return _with_other(type_, data, undefined, mask, other)
    number = _with_other(type_, data, any_marked(undefined, words), mask, other)
    if type_.element != "i64":
        return number
    return AddressWord(Lanes(type_, data, undefined=any_marked(undefined, none_if_false(~words))), number)


def _with_other(
    type_: Type, data: torch.Tensor, undefined: torch.Tensor | None, mask: Lanes | None, other: Lanes | None
) -> Lanes:
    """What was loaded; `other`, or undefined, where the mask is off."""
    if type_.element == "i1":
        data = data != 0
    if mask is None:
        return Lanes(type_, data, undefined=undefined)
    active = mask.data
    if undefined is not None:
        undefined = none_if_false(undefined & active)
    if other is None:
        return Lanes(type_, data, undefined=any_marked(undefined, ~active))
    if other.undefined is not None:
        undefined = any_marked(undefined, ~active & other.undefined)
    if type_.element.startswith("f8"):
        chosen = torch.where(active, data.contiguous().view(torch.int8), other.data.view(torch.int8)).view(type_.dtype)
    else:
        chosen = torch.where(active, data, other.data)
    return Lanes(type_, chosen, undefined=undefined)


def _load_scattered(
    machine: Machine, frame: Frame, pointer: Lanes, mask: Lanes | None, type_: Type, only_addresses: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None] | None:
    """Lane by lane: addresses in several buffers, or in one that this launch also writes, or a table of addresses.

    Data, where it is undefined, and where it is an address. None: `only_addresses`.
    """
    item = type_.item_bytes
    every = frame.programs.numel() > 1 and any(buffer.track_reads for buffer in machine.memory.buffers)
    shape = (frame.programs.numel(), *(type_.shape or ())) if every else access_shape(frame, type_, pointer, mask)
    lanes = scattered(pointer, None if mask is None else mask.data, frame.programs[: shape[0]], shape)
    groups = lanes.by_buffer(machine.memory, item)
    for buffer, places, chosen in groups:
        buffer.require(use_of(type_))
        if buffer.track_reads:
            record_reads(machine, buffer, places, lanes.programs if chosen is None else lanes.programs[chosen], item)
    if only_addresses:
        return None
    dtype = torch.int8 if type_.element == "i1" else type_.dtype
    raw = torch.zeros(lanes.addresses.numel(), dtype=RAW_DTYPES[item])
    undefined, words = torch.zeros(2, lanes.addresses.numel(), dtype=torch.bool)
    for buffer, places, chosen in groups:
        if buffer.words is not None:
            words[slice(None) if chosen is None else chosen] = buffer.words[places * item >> 3]
        loaded = typed(buffer, RAW_DTYPES[item])[places]
        marks = None
        if buffer.defined is not None:
            marks = ~shadow_units(buffer, "defined", places, item).all(-1)
        if chosen is None:
            raw = loaded
            undefined = marks if marks is not None else undefined
        else:
            raw[chosen] = loaded
            if marks is not None:
                undefined[chosen] = marks
    data = raw.view(dtype)
    if lanes.active is not None:
        spread = torch.zeros(lanes.active.numel(), dtype=RAW_DTYPES[item])
        spread[lanes.active] = raw
        data = spread.view(dtype)
        marks = torch.zeros(2, lanes.active.numel(), dtype=torch.bool)
        marks[:, lanes.active] = torch.stack([undefined, words])
        undefined, words = marks
    return data.reshape(shape), none_if_false(undefined.reshape(shape)), none_if_false(words.reshape(shape))
