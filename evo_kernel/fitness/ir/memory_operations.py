"""Loads, stores, atomic operations and tensor descriptors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evo_kernel.fitness.ir import hint_checks
from evo_kernel.fitness.ir.descriptors import DeviceDescriptor, block_of, check_use
from evo_kernel.fitness.ir.engine import Frame, Machine, Unsupported, handles
from evo_kernel.fitness.ir.lanes import Lanes, Sum, Term, nothing
from evo_kernel.fitness.ir.memory import (
    MANY,
    PADDING,
    DeviceBuffer,
    MemoryAccess,
    MemoryFault,
    scattered,
    typed,
    unit_places,
)
from evo_kernel.fitness.ir.parse import Operation
from evo_kernel.fitness.ir.types import IRError, Type

_RAW = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _programs_of(frame: Frame, *values: Lanes | None) -> int:
    """Programs along the first axis of an access: one where all do the same."""
    return frame.programs.numel() if any(v is not None and v.programs > 1 for v in values) else 1


def _allowed_access(machine: Machine, pointer: Lanes, mask: Lanes | None, what: str) -> None:
    """Raises MemoryFault where an active lane's address or mask is undefined, Unsupported within a combiner."""
    if machine.combining:
        raise Unsupported(f"a combiner that {what}")
    if mask is not None and mask.undefined is not None and bool(mask.undefined.any()):
        raise MemoryFault("undefined", f"{what} under a mask that is undefined")
    if pointer.undefined is not None:
        active = pointer.undefined if mask is None else pointer.undefined & mask.data
        if bool(active.any()):
            raise MemoryFault("undefined", f"{what} at an address that is undefined")


def _kept_promises(frame: Frame, pointer: Lanes, mask: Lanes | None, type_: Type) -> None:
    """Raises MemoryFault where a vector would store elsewhere than the kernel says."""
    torn = hint_checks.torn(pointer, mask, type_.item_bytes, _shape(frame, type_, pointer, mask))
    if torn is not None:
        program = int(torn.nonzero()[0][0]) if torn.shape[0] > 1 else 0
        message = "stores by a promise (multiple_of, max_contiguous, max_constancy) that does not hold"
        raise MemoryFault("undefined", message, int(frame.programs[program]))


def _flag(data: torch.Tensor) -> torch.Tensor | None:
    return data if bool(data.any()) else None


# --- loads ----------------------------------------------------------------------------------------------------------


@handles("tt.load")
def _load(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    pointer = operands[0]
    mask = operands[1] if len(operands) > 1 else None
    other = operands[2] if len(operands) > 2 else None
    return [load(machine, frame, operation, pointer, mask, other, operation.results[0].type)]


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
    _allowed_access(machine, pointer, mask, "loads")
    torn = hint_checks.torn(pointer, mask, type_.item_bytes, _shape(frame, type_, pointer, mask))
    if torn is not None:  # in place of what a vector loads there
        made = load(machine, frame, operation, pointer.alone(), mask and mask.alone(), other, type_)
        return Lanes(type_, made.data, undefined=torn if made.undefined is None else made.undefined | torn)
    known = True if mask is None else mask.boolean()
    if known is True:
        mask = None
    if machine.observer is not None and known is not False:
        machine.observer.access(operation, pointer, mask, frame.programs, type_.item_bytes, type_.shape or ())
    if known is False:
        return other if other is not None else nothing(type_)
    if other is None and not machine.memory.strict:
        other = nothing(type_)
    item, rank = type_.item_bytes, type_.rank + 1
    access = machine.memory.access(pointer.sum, item, rank, PADDING // 2 if mask is not None else 0)
    if access is None or access.buffer.track_reads:
        data, undefined = _load_scattered(machine, frame, pointer, mask, type_)
        if machine.skips_floats and type_.is_float:
            return nothing(type_)
    else:
        if mask is not None and machine.memory.strict:
            _check_active(machine, frame, access, mask, pointer, item)
        if machine.skips_floats and type_.is_float:
            return nothing(type_)
        raw = Type("i8") if type_.element.startswith("f8") else type_  # torch gathers no 8-bit floats
        data = access.gathered(typed(access.buffer, raw), item)
        data = data if raw is type_ else data.contiguous().view(type_.dtype)
        undefined = _undefined_at(access, item)
    if type_.element == "i1":
        data = data != 0
    if mask is None:
        return Lanes(type_, data, undefined=undefined)
    active = mask.data
    if undefined is not None:
        undefined = _flag(undefined & active)
    if other is None:
        off = ~active
        return Lanes(type_, data, undefined=off if undefined is None else undefined | off)
    if other.undefined is not None:
        off = ~active & other.undefined
        undefined = off if undefined is None else undefined | off
    if type_.element.startswith("f8"):
        chosen = torch.where(active, data.contiguous().view(torch.int8), other.data.view(torch.int8)).view(type_.dtype)
    else:
        chosen = torch.where(active, data, other.data)
    return Lanes(type_, chosen, undefined=undefined)


def _check_active(machine: Machine, frame: Frame, access: MemoryAccess, mask: Lanes, pointer: Lanes, item: int) -> None:
    """Raises MemoryFault where an active lane lies outside the buffer (the whole access may reach into its padding)."""
    total = pointer.sum
    number = machine.memory.buffers.index(access.buffer)
    base = machine.memory.address(number)
    if total.low >= base and total.high + item <= base + access.buffer.size:
        return
    offsets = access.offsets() - PADDING
    outside = ((offsets < 0) | (offsets + item > access.buffer.size)) & mask.data
    if bool(outside.any()):
        where = outside.nonzero()[0].tolist()
        place = offsets.expand(outside.shape)[tuple(where)]
        raise MemoryFault(
            "out_of_bounds",
            f"accesses {item} bytes {machine.memory.describe(base + int(place))}",
            int(frame.programs[min(where[0], frame.programs.numel() - 1)]),
        )


def _undefined_at(access: MemoryAccess, item: int) -> torch.Tensor | None:
    defined = access.buffer.defined
    if defined is None:
        return None
    unit = access.buffer.unit(item)
    assert access.buffer.defined is not None
    found = access.gathered(access.buffer.defined, unit, item // unit)
    if item > unit:
        found = found.all(-1)
    return _flag(~found)


def _shape(frame: Frame, type_: Type, *values: Lanes | None) -> tuple[int, ...]:
    return (_programs_of(frame, *values), *(type_.shape or ()))


def _load_scattered(
    machine: Machine, frame: Frame, pointer: Lanes, mask: Lanes | None, type_: Type
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Lane by lane: addresses in several buffers, or in one that this launch writes too."""
    item = type_.item_bytes
    every = frame.programs.numel() > 1 and any(buffer.track_reads for buffer in machine.memory.buffers)
    shape = (frame.programs.numel(), *(type_.shape or ())) if every else _shape(frame, type_, pointer, mask)
    lanes = scattered(pointer, None if mask is None else mask.data, frame.programs[: shape[0]], shape)
    dtype = torch.int8 if type_.element == "i1" else type_.dtype
    raw = torch.zeros(lanes.addresses.numel(), dtype=_RAW[item])
    undefined = torch.zeros(lanes.addresses.numel(), dtype=torch.bool)
    for buffer, places, chosen in lanes.by_buffer(machine.memory, item):
        loaded = typed(buffer, Type({1: "i8", 2: "i16", 4: "i32", 8: "i64"}[item]))[places]
        marks = None
        if buffer.defined is not None:
            marks = ~_units(buffer, "defined", places, item).all(-1)
        if buffer.track_reads:
            _note_reads(machine, buffer, places, lanes.programs if chosen is None else lanes.programs[chosen], item)
        if chosen is None:
            raw = loaded
            undefined = marks if marks is not None else undefined
        else:
            raw[chosen] = loaded
            if marks is not None:
                undefined[chosen] = marks
    data = raw.view(dtype)
    if lanes.active is not None:
        spread = torch.zeros(lanes.active.numel(), dtype=_RAW[item])
        spread[lanes.active] = raw
        data = spread.view(dtype)
        marks = torch.zeros(lanes.active.numel(), dtype=torch.bool)
        marks[lanes.active] = undefined
        undefined = marks
    return data.reshape(shape), _flag(undefined.reshape(shape))


def _units(buffer: DeviceBuffer, name: str, places: torch.Tensor, item: int) -> torch.Tensor:
    """Shadow elements of items, as a last axis."""
    if name == "defined":
        unit = buffer.unit(item)
        shadow = buffer.defined
        assert shadow is not None
    else:
        shadow = buffer.shadow(name, item)
        unit = buffer.unit(item)
    return shadow[unit_places(places, item, unit)]


def _note_reads(
    machine: Machine, buffer: DeviceBuffer, places: torch.Tensor, programs: torch.Tensor, item: int
) -> None:
    """Raises MemoryFault where another program stored what is read; remembers who reads."""
    me = (programs + 1).int().unsqueeze(-1)
    if buffer.writer is not None:
        writer = _units(buffer, "writer", places, item)
        foreign = (writer != 0) & (writer != me)
        if bool(foreign.any()):
            _race(machine, writer, me.expand(writer.shape), foreign, "reads what", "stored")
    reader = buffer.shadow("reader", item)
    where = unit_places(places, item, buffer.unit(item))
    before = reader[where]
    others = (before != 0) & (before != me)
    if bool(others.any()):  # readers that have met in atomic operations take turns: the last one stands for both
        them = torch.where(before > 0, machine.synchronised[(before.long() - 1).clamp(min=0)], False)
        others = others & ~(them & machine.synchronised[me.long() - 1])
    reader[where] = torch.where(others, MANY, me)
    after = reader[where]  # several programs of this chunk: one of them stands there
    lost = (after != me) & (after != MANY)
    if bool(lost.any()):
        reader[where[lost]] = MANY


def _race(machine: Machine, theirs: torch.Tensor, mine: torch.Tensor, where: torch.Tensor, what: str, did: str) -> None:
    """Raises MemoryFault, unless all programs concerned have met in atomic operations."""
    if not machine.memory.strict:
        return
    a, b = theirs[where].long() - 1, mine[where].long() - 1
    met = torch.where(a >= 0, machine.synchronised[a.clamp(min=0)], False) & machine.synchronised[b]
    if bool(met.all()):
        return
    first = int((~met).nonzero()[0])
    other = f"program {int(a[first])}" if int(a[first]) >= 0 else "another program"
    raise MemoryFault("race", f"{what} {other} {did} in the same launch", int(b[first]))


# --- stores ---------------------------------------------------------------------------------------------------------


@handles("tt.store")
def _store(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    store(machine, frame, operation, operands[0], operands[1], operands[2] if len(operands) > 2 else None)
    return []


def store(
    machine: Machine, frame: Frame, operation: Operation, pointer: Lanes, value: Lanes, mask: Lanes | None
) -> None:
    """Elements to addresses where the mask is on. Raises MemoryFault."""
    _allowed_access(machine, pointer, mask, "stores")
    _kept_promises(frame, pointer, mask, value.type)
    known = True if mask is None else mask.boolean()
    if known is False:
        return
    mask = None if known is True else mask
    type_ = value.type
    if machine.observer is not None:
        machine.observer.access(operation, pointer, mask, frame.programs, type_.item_bytes, type_.shape or ())
    item, rank = type_.item_bytes, type_.rank + 1
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
    """Windows of programs side by side, where addresses and mask are regular but for where a program begins."""
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
    """A store without a mask: what remains of its lanes once factors of the mask have cut them."""

    access: MemoryAccess
    data: torch.Tensor
    undefined: torch.Tensor | None
    programs: torch.Tensor
    is_nothing: bool = False  # the data was skipped: only who stores where is known


def _window(
    access: MemoryAccess, mask: Lanes | None, value: Lanes, frame: Frame, type_: Type, skipped: bool
) -> _Window | None:
    """None where the mask does more than to cut lanes off the ends of axes, or where lanes share elements."""
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
    made = MemoryAccess(access.buffer, offset, tuple(progressions), (), access.rank)
    return _Window(made, data, undefined, programs, skipped)


def _cuts(mask: Lanes | None) -> dict[int, torch.Tensor] | None:
    """Which places along an axis a mask leaves on, by axis; None where it is more than that."""
    made: dict[int, torch.Tensor] = {}
    for factor in mask.factors if mask is not None else ():
        varying = [axis for axis, size in enumerate(factor.shape) if size > 1]
        if len(varying) != 1:
            return None
        flat = factor.reshape(-1)
        made[varying[0]] = made[varying[0]] & flat if varying[0] in made else flat
    return made if all(bool(on.any()) for on in made.values()) else None


def _inside(access: MemoryAccess, item: int) -> bool:
    last = access.offset + sum((size - 1) * step for _, size, step in access.progressions)
    return access.offset >= PADDING and last + item <= PADDING + access.buffer.size


def _store_window(machine: Machine, window: _Window, item: int) -> None:
    """A store to a strided view whose elements are all different."""
    access, buffer = window.access, window.access.buffer
    raw = _RAW[item]
    target = access.view(typed(buffer, Type({1: "i8", 2: "i16", 4: "i32", 8: "i64"}[item])), item)
    data = window.data.to(torch.int8) if window.data.dtype is torch.bool else window.data
    data = data.contiguous().view(raw) if data.dtype is not raw else data
    unit = buffer.unit(item)
    writer = access.view(buffer.shadow("writer", item), unit, item // unit)
    me = (window.programs + 1).int().reshape(-1, *(1,) * (writer.dim() - 1))
    if me.shape[0] > 1 and writer.shape[0] == 1:
        me = me[:1]
    shadows = [("stored", writer)]
    if buffer.reader is not None:
        shadows.append(("read", access.view(buffer.shadow("reader", item), unit, item // unit)))
    for did, shadow in shadows:
        if not bool(shadow.any()):
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
                _race(machine, shadow, me.expand(shadow.shape), foreign, "stores to what", did)
    writer.copy_(me.expand(writer.shape))
    if window.is_nothing:
        if buffer.changed:  # what was there before is there no more
            if buffer.defined is None:
                _begin_shadow(buffer, item)
            assert buffer.defined is not None
            access.view(buffer.defined, unit, item // unit).fill_(False)
        return
    target.copy_(data.expand(target.shape))
    mark = None if window.undefined is None else _flag(window.undefined)
    if mark is not None and buffer.defined is None:
        _begin_shadow(buffer, item)
    if buffer.defined is not None:
        defined = access.view(buffer.defined, unit, item // unit)
        good = torch.ones((1,) * target.dim(), dtype=torch.bool) if mark is None else ~mark
        defined.copy_((good.unsqueeze(-1) if item > unit else good).expand(defined.shape))


def _begin_shadow(buffer: DeviceBuffer, item: int) -> None:
    """A buffer that was defined as a whole is about to hold something undefined."""
    unit = buffer.unit(item)
    buffer.defined = torch.ones(-(-(buffer.size + 2 * PADDING) // unit), dtype=torch.bool)


def _store_scattered(machine: Machine, frame: Frame, pointer: Lanes, value: Lanes, mask: Lanes | None) -> None:
    """Lane by lane."""
    type_ = value.type
    item = type_.item_bytes
    shape = (frame.programs.numel(), *(type_.shape or ()))
    lanes = scattered(pointer, None if mask is None else mask.data, frame.programs, shape)
    data = value.data.to(torch.int8) if type_.element == "i1" else value.data
    flat = data.contiguous().view(_RAW[item]).expand(shape).reshape(-1)
    marks = None if value.undefined is None else value.undefined.expand(shape).reshape(-1)
    if lanes.active is not None:
        flat = flat[lanes.active]
        marks = None if marks is None else marks[lanes.active]
    for buffer, places, chosen in lanes.by_buffer(machine.memory, item):
        new = flat if chosen is None else flat[chosen]
        mark = marks if chosen is None or marks is None else marks[chosen]
        programs = lanes.programs if chosen is None else lanes.programs[chosen]
        if machine.skips_floats and value.is_nothing:
            _claim(machine, buffer, places, programs, item)
        else:
            _put(machine, buffer, places, new, mark, programs, item)


def _claim(machine: Machine, buffer: DeviceBuffer, places: torch.Tensor, programs: torch.Tensor, item: int) -> None:
    """Note who stores what was skipped."""
    me = (programs + 1).int().unsqueeze(-1)
    writer, where = buffer.shadow("writer", item), unit_places(places, item, buffer.unit(item))
    foreign = (writer[where] != 0) & (writer[where] != me)
    writer[where] = me.expand(where.shape)
    foreign |= writer[where] != me
    if buffer.changed:
        if buffer.defined is None:
            _begin_shadow(buffer, item)
        assert buffer.defined is not None
        buffer.defined[where] = False
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
    memory = typed(buffer, Type({1: "i8", 2: "i16", 4: "i32", 8: "i64"}[item]))
    me = (programs + 1).int().unsqueeze(-1)
    buffer.shadow("writer", item)
    changed = (memory[places] != new).unsqueeze(-1)
    for name, did in (("writer", "stored"), ("reader", "read")):
        if getattr(buffer, name) is None:
            continue
        shadow = _units(buffer, name, places, item)
        foreign = (shadow != 0) & (shadow != me) & changed
        if bool(foreign.any()):
            _race(machine, shadow, me.expand(shadow.shape), foreign, "stores to what", did)
    memory[places] = new
    where = unit_places(places, item, buffer.unit(item))
    writer = buffer.shadow("writer", item)
    writer[where] = me.expand(where.shape)
    clash = memory[places] != new  # lanes that stored other values to one element
    if bool(clash.any()):
        mine, theirs = me.expand(where.shape)[clash], writer[where][clash]
        _race(machine, theirs, mine, torch.ones_like(mine, dtype=torch.bool), "stores to what", "stored")
    if marks is not None and bool(marks.any()) and buffer.defined is None:
        _begin_shadow(buffer, item)
    if buffer.defined is not None:
        good = torch.ones(places.numel(), dtype=torch.bool) if marks is None else ~marks
        buffer.defined[unit_places(places, item, buffer.unit(item))] = good.unsqueeze(-1)


# --- atomic operations ----------------------------------------------------------------------------------------------


def _unsigned_order(data: torch.Tensor) -> torch.Tensor:
    return data ^ torch.iinfo(data.dtype).min


_ATOMIC: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add, "fadd": torch.add, "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "max": torch.maximum, "min": torch.minimum, "exch": lambda old, new: new.expand_as(old),
    "umax": lambda a, b: torch.where(_unsigned_order(a) >= _unsigned_order(b), a, b),
    "umin": lambda a, b: torch.where(_unsigned_order(a) <= _unsigned_order(b), a, b),
}  # fmt: skip


@handles("tt.atomic_rmw")
def _atomic_rmw(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    pointer, value = operands[0], operands[1]
    mask = operands[2] if len(operands) > 2 else None
    kind = operation.words[0]
    if kind not in _ATOMIC:
        raise Unsupported(f"tt.atomic_rmw {kind}")
    update = _ATOMIC[kind]
    wanted = operation.results[0].name in machine.used
    return [_atomic(machine, frame, operation, pointer, [value], mask, lambda old, new: update(old, new[0]), wanted)]


@handles("tt.atomic_cas")
def _atomic_cas(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    pointer, expected, value = operands

    def exchange(old: torch.Tensor, new: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.where(old == new[0], new[1], old)

    return [_atomic(machine, frame, operation, pointer, [expected, value], None, exchange, True)]


def _atomic(
    machine: Machine,
    frame: Frame,
    operation: Operation,
    pointer: Lanes,
    values: Sequence[Lanes],
    mask: Lanes | None,
    update: Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor],
    wanted: bool,
) -> Lanes:
    """Read, update, write, one lane after another where lanes share an element. Returns what was there before."""
    _allowed_access(machine, pointer, mask, "updates memory")
    type_ = values[-1].type
    _kept_promises(frame, pointer, mask, type_)
    item = type_.item_bytes
    shape = (frame.programs.numel(), *(type_.shape or ()))
    if mask is not None and mask.boolean() is False:
        return nothing(type_)
    if machine.observer is not None:
        machine.observer.access(operation, pointer, mask, frame.programs, item, type_.shape or ())
    lanes = scattered(pointer, None if mask is None else mask.data, frame.programs, shape)
    flat = [value.data.expand(shape).reshape(-1) for value in values]
    marks = torch.zeros(1, dtype=torch.bool).expand(shape)
    for value in values:
        if value.undefined is not None:
            marks = marks | value.undefined.expand(shape)
    marks = marks.reshape(-1)
    if lanes.active is not None:
        flat, marks = [data[lanes.active] for data in flat], marks[lanes.active]
    before = torch.zeros(lanes.addresses.numel(), dtype=type_.dtype)
    undefined = torch.zeros(lanes.addresses.numel(), dtype=torch.bool)
    if machine.skips_floats and any(value.is_nothing for value in values):
        for buffer, places, _ in lanes.by_buffer(machine.memory, item):
            shadow = buffer.shadow("writer", item)
            shadow[unit_places(places, item, buffer.unit(item))] = MANY
        machine.synchronised[frame.programs] |= machine.learns and _orders(operation)
        return nothing(type_)
    for buffer, places, chosen in lanes.by_buffer(machine.memory, item):
        some = slice(None) if chosen is None else chosen
        new = [data[some] for data in flat]
        old, old_marks = _update(
            machine, buffer, places, new, marks[some], lanes.programs[some], type_, update, operation, wanted
        )
        before[some], undefined[some] = old, old_marks
    machine.synchronised[frame.programs] |= machine.learns and _orders(operation)
    if lanes.active is not None:
        spread = torch.zeros(lanes.active.numel(), dtype=type_.dtype)
        spread[lanes.active] = before
        spread_marks = ~lanes.active
        spread_marks[lanes.active] = undefined
        before, undefined = spread, spread_marks
    return Lanes(type_, before.reshape(shape), undefined=_flag(undefined.reshape(shape)))


def _orders(operation: Operation) -> bool:
    """Whether it puts stores of different programs in an order: not where it is relaxed, or for its block alone."""
    return not {"relaxed", "cta"} & set(operation.words)


def _update(
    machine: Machine,
    buffer: DeviceBuffer,
    places: torch.Tensor,
    new: Sequence[torch.Tensor],
    marks: torch.Tensor,
    programs: torch.Tensor,
    type_: Type,
    update: Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor],
    operation: Operation,
    wanted: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lanes of one buffer: what was there before, and where that was undefined."""
    item = type_.item_bytes
    buffer.changed = True
    memory = typed(buffer, type_)
    me = (programs + 1).int().unsqueeze(-1)
    if buffer.writer is not None:
        writer = _units(buffer, "writer", places, item)
        foreign = (writer != 0) & (writer != me)
        if bool(foreign.any()):
            _race(machine, writer, me.expand(writer.shape), foreign, "updates what", "stored")
    undefined = torch.zeros(places.numel(), dtype=torch.bool)
    if bool(marks.any()) and buffer.defined is None:
        _begin_shadow(buffer, item)
    if buffer.defined is not None:
        where = unit_places(places, item, buffer.unit(item))
        undefined = ~buffer.defined[where].all(-1)
        good = ~marks if operation.words[:1] == ("exch",) else ~(marks | undefined)
        buffer.defined[where] = good.unsqueeze(-1)
        bad = where[~good]
        if bad.numel():
            buffer.defined[bad.reshape(-1)] = False  # of several lanes on one element, one undefined is enough
    if torch.unique(places).numel() == places.numel():
        old = memory[places].clone()
        memory[places] = update(old, new)
        return old, undefined
    if not wanted and operation.words[0] in ("add", "fadd") and type_.element not in ("f16", "bf16"):
        order = torch.arange(places.numel() - 1, -1, -1) if machine.reverse else slice(None)
        memory.index_add_(0, places[order], new[0][order])
        return new[0], undefined
    return _one_after_another(memory, places, new, update, machine.reverse), undefined


def _one_after_another(
    memory: torch.Tensor,
    places: torch.Tensor,
    new: Sequence[torch.Tensor],
    update: Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor],
    reverse: bool,
) -> torch.Tensor:
    """Rounds in which every element is touched once: lanes that share one take turns in their order."""
    if reverse:
        flipped = _one_after_another(memory, places.flip(0), [data.flip(0) for data in new], update, False)
        return flipped.flip(0)
    order = torch.argsort(places, stable=True)
    ordered = places[order]
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = torch.where(first, torch.arange(ordered.numel()), 0).cummax(0).values
    turn = torch.empty_like(order)
    turn[order] = torch.arange(ordered.numel()) - starts
    old = torch.empty(places.numel(), dtype=memory.dtype)
    for number in range(int(turn.max()) + 1):
        now = (turn == number).nonzero().squeeze(1)
        seen = memory[places[now]]
        old[now] = seen
        memory[places[now]] = update(seen, [data[now] for data in new])
    return old


# --- tensor descriptors ---------------------------------------------------------------------------------------------


@handles("tt.make_tensor_descriptor")
def _make_descriptor(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    rank = block_of(type_).rank
    zeros = operation.integer("padding", 1) != 2  # tt::PaddingOption: 1 is PAD_ZERO, 2 PAD_NAN
    return [
        DeviceDescriptor(type_, operands[0], operands[1 : 1 + rank], operands[1 + rank : 1 + 2 * rank], zeros=zeros)
    ]


def _used(machine: Machine, frame: Frame, descriptor: Lanes, indices: Sequence[Lanes]) -> DeviceDescriptor:
    if not isinstance(descriptor, DeviceDescriptor):
        raise IRError("a descriptor operation on what is no descriptor")
    if machine.memory.strict:
        check_use(descriptor, indices, frame.programs)
    return descriptor


def _described(descriptor: DeviceDescriptor, indices: Sequence[Lanes]) -> tuple[Lanes, Lanes]:
    """Addresses and mask of a block at some indices."""
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
        offsets = torch.arange(shape[axis]).reshape(1, *(-1 if a == axis else 1 for a in range(rank)))
        start = lifted(index.sum)
        place = start.plus(Sum(0, (Term(offsets, 0, shape[axis] - 1),) if shape[axis] > 1 else ()))
        step = stride.sum
        if step.terms:
            data = place.data(rank) * lifted(step).data(rank)
            total = total.plus(Sum(0, (_term(data * item),)))
        else:
            total = total.plus(place.times(step.constant * item))
        bound = lifted(size.sum)
        if place.low < 0 or place.plus(bound.times(-1)).high >= 0:
            position = place.data(rank)
            inside = (position >= 0) & (position < bound.data(rank))
            if not bool(inside.all()):
                factors.append(inside)
    pointer = Lanes(Type("ptr", shape, Type(block.element)), sum_=total)
    mask = Lanes(Type("i1", shape), factors=tuple(factors))
    return pointer, mask


def _term(data: torch.Tensor) -> Term:
    low, high = torch.aminmax(data)
    return Term(data, int(low), int(high))


@handles("tt.descriptor_load")
def _descriptor_load(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    descriptor = _used(machine, frame, operands[0], operands[1:])
    pointer, mask = _described(descriptor, operands[1:])
    block = block_of(descriptor.type)
    fill = torch.full((1,) * (block.rank + 1), 0.0 if descriptor.zeros else torch.nan).to(block.dtype)
    made = load(machine, frame, operation, pointer, mask, Lanes(block, fill), Type(block.element, block.shape))
    data = made.data
    if descriptor.round_tf32 and block.element == "f32":
        from evo_kernel.fitness.ir.reductions import tf32

        data = tf32(data)
    return [_refit(Lanes(block, data, undefined=made.undefined), type_)]


def _refit(value: Lanes, type_: Type) -> Lanes:
    """A block with leading axes of size 1 as a tensor of fewer axes, or the other way round."""
    if value.type.shape == type_.shape:
        return Lanes(type_, value.data, undefined=value.undefined)
    shape = type_.shape or ()
    undefined = value.undefined
    if undefined is not None:
        undefined = undefined.expand(undefined.shape[0], *(value.type.shape or ())).reshape(-1, *shape)
    return Lanes(type_, value.full().reshape(-1, *shape), undefined=undefined)


@handles("tt.descriptor_store", "tt.descriptor_reduce")
def _descriptor_store(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    descriptor = _used(machine, frame, operands[0], operands[1:-1])
    value = operands[-1]
    pointer, mask = _described(descriptor, operands[1:-1])
    value = _refit(value, Type(value.type.element, block_of(descriptor.type).shape))
    if operation.name == "tt.descriptor_store":
        store(machine, frame, operation, pointer, value, mask)
        return []
    kind = operation.words[0]
    if kind in ("inc", "dec") or kind not in _ATOMIC:
        raise Unsupported(f"tt.descriptor_reduce {kind}")
    update = _ATOMIC[kind]
    _atomic(machine, frame, operation, pointer, [value], mask, lambda old, new: update(old, new[0]), False)
    return []


@handles("tt.descriptor_gather", "tt.descriptor_scatter")
def _descriptor_rows(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Rows by a tensor of row numbers, columns from an offset; rows outside read as zeros."""
    _, rows, column = operands[:3]
    descriptor = _used(machine, frame, operands[0], (rows, column))
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
        fill = Lanes(type_, torch.zeros((1, 1, 1)).to(type_.dtype))
        return [load(machine, frame, operation, pointer, mask, fill, type_)]
    store(machine, frame, operation, pointer, operands[3], mask)
    return []
