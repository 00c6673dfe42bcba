"""Handlers of atomic operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from evo_kernel.fitness.ir.access_checks import (
    check_hints,
    check_race,
    none_if_false,
    note_since,
    require_defined_access,
    shadow_units,
    since_units,
    use_of,
)
from evo_kernel.fitness.ir.device_functions import flushing, without_denormals
from evo_kernel.fitness.ir.engine import Frame, Machine, Unsupported, handles
from evo_kernel.fitness.ir.lanes import Lanes, any_undefined, nothing
from evo_kernel.fitness.ir.memory import MANY, RAW_DTYPES, DeviceBuffer, scattered, typed, unit_places
from evo_kernel.fitness.ir.module import Operation
from evo_kernel.fitness.ir.stores import begin_shadow
from evo_kernel.fitness.ir.types import Type


def _unsigned_order(data: torch.Tensor) -> torch.Tensor:
    return data ^ torch.iinfo(data.dtype).min


ATOMIC_UPDATES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add, "fadd": flushing(torch.add),
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "max": torch.maximum, "min": torch.minimum, "exch": lambda old, new: new.expand_as(old),
    "umax": lambda a, b: torch.where(_unsigned_order(a) >= _unsigned_order(b), a, b),
    "umin": lambda a, b: torch.where(_unsigned_order(a) <= _unsigned_order(b), a, b),
}  # fmt: skip
"""Sums of float32 in global memory take denormal numbers for zeros, and give none (PTX ISA, atom)."""
EXTREMES = {"max": "amax", "min": "amin"}
"""Updates that torch applies to all lanes at once, by its name for them."""


@handles("tt.atomic_rmw")
def _atomic_rmw(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    pointer, value = operands[0], operands[1]
    mask = operands[2] if len(operands) > 2 else None
    kind = operation.words[0]
    if kind not in ATOMIC_UPDATES:
        raise Unsupported(f"tt.atomic_rmw {kind}")
    update = ATOMIC_UPDATES[kind]
    returns_old = operation.results[0].name in machine.used
    return [
        atomic(machine, frame, operation, pointer, [value], mask, lambda old, new: update(old, new[0]), returns_old)
    ]


@handles("tt.atomic_cas")
def _atomic_cas(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    pointer, expected, value = operands

    def exchange(old: torch.Tensor, new: Sequence[torch.Tensor]) -> torch.Tensor:
        raw = RAW_DTYPES[old.element_size()]  # bits are compared: -0.0 is not 0.0, NaN is itself
        return torch.where(old.contiguous().view(raw) == new[0].contiguous().view(raw), new[1], old)

    return [atomic(machine, frame, operation, pointer, [expected, value], None, exchange, True)]


def atomic(
    machine: Machine,
    frame: Frame,
    operation: Operation,
    pointer: Lanes,
    values: Sequence[Lanes],
    mask: Lanes | None,
    update: Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor],
    returns_old: bool,
) -> Lanes:
    """Read, update and write; lanes that share an element take turns. Returns the old values."""
    require_defined_access(machine, pointer, mask, "updates memory")
    type_ = values[-1].type
    check_hints(frame, pointer, mask, type_)
    item = type_.item_bytes
    shape = (frame.programs.numel(), *(type_.shape or ()))
    if mask is not None and mask.boolean() is False:
        return nothing(type_)
    if machine.observer is not None:
        machine.observer.access(operation, pointer, mask, frame.programs, item, type_.shape or ())
    if machine.latest is not None:
        machine.latest.note(pointer, mask, frame.programs, type_)
    lanes = scattered(pointer, None if mask is None else mask.data, frame.programs, shape)
    flat = [value.data.expand(shape).reshape(-1) for value in values]
    undefined = any_undefined(values)
    marks = (torch.zeros(1, dtype=torch.bool) if undefined is None else undefined).expand(shape).reshape(-1)
    if lanes.active is not None:
        flat, marks = [data[lanes.active] for data in flat], marks[lanes.active]
    before = torch.zeros(lanes.addresses.numel(), dtype=type_.dtype)
    undefined = torch.zeros(lanes.addresses.numel(), dtype=torch.bool)
    active = frame.programs if lanes.active is None else lanes.programs
    if machine.skips_floats and any(value.is_nothing for value in values):
        for buffer, places, _ in lanes.by_buffer(machine.memory, item):
            buffer.require("stores")
            where = unit_places(places, item, buffer.unit(item))
            buffer.shadow("writer", item)[where] = MANY
            if not type_.is_float:  # numbers that may decide where programs go on are not known
                begin_shadow(buffer, item)[where] = False
        _synchronise(machine, operation, active)
        return nothing(type_)
    for buffer, places, chosen in lanes.by_buffer(machine.memory, item):
        some = slice(None) if chosen is None else chosen
        new = [data[some] for data in flat]
        old, old_marks = _update(
            machine, buffer, places, new, marks[some], lanes.programs[some], type_, update, operation, returns_old
        )
        before[some], undefined[some] = old, old_marks
    _synchronise(machine, operation, active)
    if lanes.active is not None:
        spread = torch.zeros(lanes.active.numel(), dtype=type_.dtype)
        spread[lanes.active] = before
        spread_marks = ~lanes.active
        spread_marks[lanes.active] = undefined
        before, undefined = spread, spread_marks
    return Lanes(type_, before.reshape(shape), undefined=none_if_false(undefined.reshape(shape)))


def _synchronise(machine: Machine, operation: Operation, programs: torch.Tensor) -> None:
    """Record that programs acquire, release or both: nothing if the operation is relaxed or has block scope."""
    if not machine.learns or {"relaxed", "cta"} & set(operation.words):
        return
    if "release" not in operation.words:
        machine.acquired[programs] = True
    if "acquire" not in operation.words:
        machine.releases[programs] = machine.releases[programs] + 1


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
    returns_old: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Update lanes of one buffer: their old values, and where those were undefined."""
    item = type_.item_bytes
    for use in ("stores", use_of(type_) if operation.results else "loads"):
        buffer.require(use)
    buffer.changed = True
    memory = typed(buffer, type_.dtype)
    me = (programs + 1).int().unsqueeze(-1)
    if buffer.writer is not None:
        writer = shadow_units(buffer, "writer", places, item)
        foreign = (writer != 0) & (writer != MANY) & (writer != me)
        if bool(foreign.any()):
            since = since_units(buffer, "writer", places, item)
            check_race(machine, writer, me.expand(writer.shape), foreign, "updates what", "stored", since)
    if "cta" in operation.words:  # for other blocks it is no atomic operation, but a store
        where, writer = unit_places(places, item, buffer.unit(item)), buffer.shadow("writer", item)
        writer[where] = me.expand(where.shape)
        note_since(machine, buffer, "writer", where, programs, item)
        if bool((lost := writer[where] != me).any()):
            theirs, did = writer[where], "updated in its block"
            since = machine.releases[theirs.long() - 1]
            check_race(machine, theirs, me.expand(where.shape), lost, "updates what", did, since)
    undefined = torch.zeros(places.numel(), dtype=torch.bool)
    if bool(marks.any()) and buffer.defined is None:
        begin_shadow(buffer, item)
    if buffer.defined is not None:
        where = unit_places(places, item, buffer.unit(item))
        undefined = ~buffer.defined[where].all(-1)
        good = ~marks if operation.words[:1] == ("exch",) else ~(marks | undefined)
        buffer.defined[where] = good.unsqueeze(-1)
        bad = where[~good]
        if bad.numel():
            buffer.defined[bad.reshape(-1)] = False  # one undefined lane suffices
    kind = operation.words[0]
    if not returns_old and kind in ("add", "fadd") and type_.element not in ("f16", "bf16"):
        order = torch.arange(places.numel() - 1, -1, -1) if machine.reverse else slice(None)
        memory.index_add_(0, places[order], (without_denormals(new[0]) if kind == "fadd" else new[0])[order])
        if kind == "fadd":
            memory[places] = without_denormals(memory[places])
        return new[0], undefined
    if not returns_old and kind in EXTREMES and not type_.is_float:
        memory.scatter_reduce_(0, places, new[0], EXTREMES[kind])
        return new[0], undefined
    if torch.unique(places).numel() == places.numel():
        old = memory[places].clone()
        memory[places] = update(old, new)
        return old, undefined
    turns = machine.order(places.numel())  # hardware leaves the order of lanes open
    turns = turns.flip(0) if machine.reverse else turns
    old = torch.empty(places.numel(), dtype=type_.dtype)
    old[turns] = _one_after_another(memory, places[turns], [data[turns] for data in new], update)
    return old, undefined


def _one_after_another(
    memory: torch.Tensor,
    places: torch.Tensor,
    new: Sequence[torch.Tensor],
    update: Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor],
) -> torch.Tensor:
    """Apply updates in rounds in which every element is accessed once: lanes that share one take turns in order."""
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
        current = memory[places[now]]
        old[now] = current
        memory[places[now]] = update(current, [data[now] for data in new])
    return old
