"""Handler of stores: to strided windows where addresses and masks are regular, else lane by lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evo_kernel.fitness.ir.access_checks import (
    check_hints,
    check_race,
    none_if_false,
    note_since,
    require_defined_access,
    shadow_units,
    since_units,
)
from evo_kernel.fitness.ir.engine import Frame, Machine, Unsupported, handles
from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.memory import (
    PADDING,
    RAW_DTYPES,
    DeviceBuffer,
    MemoryAccess,
    MemoryFault,
    scattered,
    typed,
    unit_places,
)
from evo_kernel.fitness.ir.module import Operation
from evo_kernel.fitness.ir.nan_bits import device_bits
from evo_kernel.fitness.ir.types import Type


@handles("tt.store")
def _store(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    pointer, value = operands[:2]
    if value.type.is_float and not value.is_nothing:
        data = device_bits(machine, operation.operands[1], value)
        value = value if data is value.data else Lanes(value.type, data, undefined=value.undefined)
    store(machine, frame, operation, pointer, value, operands[2] if len(operands) > 2 else None)
    return []


def store(
    machine: Machine, frame: Frame, operation: Operation, pointer: Lanes, value: Lanes, mask: Lanes | None
) -> None:
    """Store elements where the mask is on. Raises MemoryFault."""
    if value.type.element == "ptr" and machine.memory.strict:
        raise Unsupported("a store of addresses: they differ from run to run")
    require_defined_access(machine, pointer, mask, "stores")
    check_hints(frame, pointer, mask, value.type)
    known = True if mask is None else mask.boolean()
    if known is False:
        return
    mask = None if known is True else mask
    type_ = value.type
    if machine.observer is not None:
        machine.observer.access(operation, pointer, mask, frame.programs, type_.item_bytes, type_.shape or ())
    item, rank = type_.item_bytes, type_.rank + 1
    if machine.latest is not None:
        machine.latest.note(pointer, mask, frame.programs, type_)
    access = machine.memory.access(pointer.sum, item, rank, PADDING // 2 if mask is not None else 0)
    skipped = machine.skips_floats and value.is_nothing
    window = None
    if access is not None and not access.indices:
        window = _window(access, mask, value, frame, type_, skipped)
    if window is not None and window.access.disjoint and _inside(window.access, item):
        _store_window(machine, window, item)
        return
    parts = _by_program(access, mask, value, frame, type_, skipped) if access is not None else None
    if parts is not None and all(part.access.disjoint and _inside(part.access, item) for part in parts):
        for part in parts:
            _store_window(machine, part, item)
        return
    _store_scattered(machine, frame, pointer, value, mask)


def _by_program(
    access: MemoryAccess, mask: Lanes | None, value: Lanes, frame: Frame, type_: Type, skipped: bool
) -> list[_Window] | None:
    """Split into windows by program if addresses and mask are regular except for each program's start."""
    if mask is not None and mask.undefined is not None:
        return None
    parts = access.by_program(frame.programs.numel())
    if parts is None:
        return None
    windows = []
    for first, last, part in parts:
        index = torch.arange(first, last)
        some = Frame(frame.programs[first:last])
        cut = None if mask is None else mask.rows(index)
        if cut is not None and cut.boolean() is False:
            continue
        window = _window(part, cut, value if value.programs == 1 else value.rows(index), some, type_, skipped)
        if window is None:
            return None
        windows.append(window)
    return windows


@dataclass(frozen=True)
class _Window:
    """A store without a mask: the lanes that remain after the mask's factors."""

    access: MemoryAccess
    data: torch.Tensor
    undefined: torch.Tensor | None
    programs: torch.Tensor
    is_nothing: bool = False  # the data was skipped: only the programs that store are known


def _window(
    access: MemoryAccess, mask: Lanes | None, value: Lanes, frame: Frame, type_: Type, skipped: bool
) -> _Window | None:
    """None if the mask does more than cut off the ends of axes, or if lanes share elements."""
    sizes = {axis: size for axis, size, _ in access.progressions}
    programs, data, undefined = frame.programs, value.data, value.undefined
    full = (programs.numel(), *(type_.shape or ()))
    for axis, size in enumerate(full):
        if size > 1 and axis not in sizes and (data.shape[axis] > 1 or axis == 0):
            return None
    if undefined is not None:
        undefined = undefined.expand(np.broadcast_shapes(undefined.shape, data.shape))
    offset, progressions = access.offset, list(access.progressions)
    cuts = _cuts(mask)
    if cuts is None or not cuts.keys() <= sizes.keys():
        return None
    for axis, on in cuts.items():
        if on.numel() != sizes[axis]:
            return None
        active = on.nonzero().squeeze(1)
        first, last = int(active[0]), int(active[-1])
        if last - first + 1 != active.numel():
            return None
        number = next(n for n, progression in enumerate(progressions) if progression[0] == axis)
        step = progressions[number][2]
        progressions[number] = (axis, active.numel(), step)
        offset += first * step
        cut = slice(first, last + 1)
        data = data.narrow(axis, first, active.numel()) if data.shape[axis] > 1 else data
        if undefined is not None and undefined.shape[axis] > 1:
            undefined = undefined.narrow(axis, first, active.numel())
        programs = programs[cut] if axis == 0 else programs
    clipped = MemoryAccess(access.buffer, offset, tuple(progressions), (), access.rank)
    return _Window(clipped, data, undefined, programs, skipped)


def _cuts(mask: Lanes | None) -> dict[int, torch.Tensor] | None:
    """Active positions along each axis by a mask; None if it is not a product of such."""
    cuts: dict[int, torch.Tensor] = {}
    for factor in mask.factors if mask is not None else ():
        varying = [axis for axis, size in enumerate(factor.shape) if size > 1]
        if len(varying) != 1:
            return None
        flat = factor.reshape(-1)
        cuts[varying[0]] = cuts[varying[0]] & flat if varying[0] in cuts else flat
    return cuts if all(bool(on.any()) for on in cuts.values()) else None


def _inside(access: MemoryAccess, item: int) -> bool:
    last = access.offset + sum((size - 1) * step for _, size, step in access.progressions)
    return access.offset >= PADDING and last + item <= PADDING + access.buffer.size


def _store_window(machine: Machine, window: _Window, item: int) -> None:
    """Store to a strided view whose elements are all distinct."""
    access, buffer = window.access, window.access.buffer
    buffer.require("stores")
    raw = RAW_DTYPES[item]
    target = access.view(typed(buffer, raw), item)
    data = window.data.to(torch.int8) if window.data.dtype is torch.bool else window.data
    data = data.contiguous().view(raw) if data.dtype is not raw else data
    unit = buffer.unit(item)
    writer = access.view(buffer.shadow("writer", item), unit, item // unit)
    me = (window.programs + 1).int().reshape(-1, *(1,) * (writer.dim() - 1))
    if me.shape[0] > 1 and writer.shape[0] == 1:
        me = me[:1]
    shadows = [("stored", writer, buffer.writer_since)]
    if buffer.reader is not None:
        shadows.append(("read", access.view(buffer.reader, unit, item // unit), buffer.reader_since))
    for did, shadow, since in shadows:
        if not int(shadow.count_nonzero()):  # several times as fast as `any`
            continue
        foreign = (shadow != 0) & (shadow != me)
        if bool(foreign.any()):
            if window.is_nothing:
                lane = foreign.nonzero()[0].tolist()
                place = access.offset + sum(lane[axis] * step for axis, _, step in access.progressions) - PADDING
                machine.conflicts.append((machine.memory.buffers.index(buffer), place))
                continue
            changed = (target != data).expand(target.shape)
            foreign = foreign & (changed.unsqueeze(-1) if item > unit else changed)
            if bool(foreign.any()):
                before = None if since is None else access.view(since, unit, item // unit)
                check_race(machine, shadow, me.expand(shadow.shape), foreign, "stores to what", did, before)
    writer.copy_(me.expand(writer.shape))
    released = machine.releases[me.long() - 1]
    if buffer.writer_since is not None or bool(released.any()):
        access.view(buffer.shadow("writer_since", item), unit, item // unit).copy_(released.expand(writer.shape))
    if window.is_nothing:
        if buffer.changed:  # the earlier content is gone
            access.view(begin_shadow(buffer, item), unit, item // unit).fill_(False)
        return
    target.copy_(data.expand(target.shape))
    mark = None if window.undefined is None else none_if_false(window.undefined)
    if mark is not None and buffer.defined is None:
        begin_shadow(buffer, item)
    if buffer.defined is not None:
        defined = access.view(buffer.defined, unit, item // unit)
        good = torch.ones((1,) * target.dim(), dtype=torch.bool) if mark is None else ~mark
        defined.copy_((good.unsqueeze(-1) if item > unit else good).expand(defined.shape))


def begin_shadow(buffer: DeviceBuffer, item: int) -> torch.Tensor:
    """`defined` of a buffer that may hold undefined values from now on."""
    unit = buffer.unit(item)
    if buffer.defined is None:
        buffer.defined = torch.ones(buffer.shadow_elements(unit), dtype=torch.bool)
    return buffer.defined


def _store_scattered(machine: Machine, frame: Frame, pointer: Lanes, value: Lanes, mask: Lanes | None) -> None:
    """Store lane by lane."""
    type_ = value.type
    item = type_.item_bytes
    shape = (frame.programs.numel(), *(type_.shape or ()))
    lanes = scattered(pointer, None if mask is None else mask.data, frame.programs, shape)
    data = value.data.to(torch.int8) if type_.element == "i1" else value.data
    flat = data.contiguous().view(RAW_DTYPES[item]).expand(shape).reshape(-1)
    marks = None if value.undefined is None else value.undefined.expand(shape).reshape(-1)
    if lanes.active is not None:
        flat = flat[lanes.active]
        marks = None if marks is None else marks[lanes.active]
    for buffer, places, chosen in lanes.by_buffer(machine.memory, item):
        buffer.require("stores")
        new = flat if chosen is None else flat[chosen]
        mark = marks if chosen is None or marks is None else marks[chosen]
        programs = lanes.programs if chosen is None else lanes.programs[chosen]
        if machine.skips_floats and value.is_nothing:
            _claim(machine, buffer, places, programs, item)
        else:
            _put(machine, buffer, places, new, mark, programs, item)


def _claim(machine: Machine, buffer: DeviceBuffer, places: torch.Tensor, programs: torch.Tensor, item: int) -> None:
    """Record which program stores skipped data."""
    me = (programs + 1).int().unsqueeze(-1)
    writer, where = buffer.shadow("writer", item), unit_places(places, item, buffer.unit(item))
    foreign = (writer[where] != 0) & (writer[where] != me)
    writer[where] = me.expand(where.shape)
    note_since(machine, buffer, "writer", where, programs, item)
    foreign |= writer[where] != me
    if buffer.changed:
        begin_shadow(buffer, item)[where] = False
    if bool(foreign.any()):
        lane = int(foreign.any(-1).nonzero()[0])
        machine.conflicts.append((machine.memory.buffers.index(buffer), int(places[lane]) * item - PADDING))


def _put(
    machine: Machine,
    buffer: DeviceBuffer,
    places: torch.Tensor,
    new: torch.Tensor,
    marks: torch.Tensor | None,
    programs: torch.Tensor,
    item: int,
) -> None:
    memory = typed(buffer, RAW_DTYPES[item])
    me = (programs + 1).int().unsqueeze(-1)
    buffer.shadow("writer", item)
    changed = (memory[places] != new).unsqueeze(-1)
    for name, did in (("writer", "stored"), ("reader", "read")):
        if getattr(buffer, name) is None:
            continue
        shadow = shadow_units(buffer, name, places, item)
        foreign = (shadow != 0) & (shadow != me) & changed
        if bool(foreign.any()):
            since = since_units(buffer, name, places, item)
            check_race(machine, shadow, me.expand(shadow.shape), foreign, "stores to what", did, since)
    memory[places] = new
    where = unit_places(places, item, buffer.unit(item))
    writer = buffer.shadow("writer", item)
    writer[where] = me.expand(where.shape)
    note_since(machine, buffer, "writer", where, programs, item)
    clash = memory[places] != new  # lanes that stored different values to one element
    if bool(clash.any()):
        mine, theirs = me.expand(where.shape)[clash], writer[where][clash]
        if machine.memory.strict and bool((own := (mine == theirs).all(-1)).any()):
            program = int(mine[own][0][0]) - 1
            raise MemoryFault("race", "stores different values to one element with one instruction", program)
        every, since = torch.ones_like(mine, dtype=torch.bool), machine.releases[theirs.long() - 1]
        check_race(machine, theirs, mine, every, "stores to what", "stored", since)
    if marks is not None and bool(marks.any()) and buffer.defined is None:
        begin_shadow(buffer, item)
    if buffer.defined is not None:
        good = torch.ones(places.numel(), dtype=torch.bool) if marks is None else ~marks
        buffer.defined[unit_places(places, item, buffer.unit(item))] = good.unsqueeze(-1)
