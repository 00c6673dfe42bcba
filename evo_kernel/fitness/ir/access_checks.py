"""Checks of memory accesses: undefined addresses and masks, lanes out of bounds, races, wrong hints."""

from __future__ import annotations

import torch

from evo_kernel.fitness.ir import hint_checks
from evo_kernel.fitness.ir.engine import Frame, Machine, Unsupported
from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.memory import MANY, PADDING, DeviceBuffer, MemoryAccess, MemoryFault, unit_places
from evo_kernel.fitness.ir.types import Type
from evo_kernel.fitness.marks import any_of


def require_defined_access(machine: Machine, pointer: Lanes, mask: Lanes | None, what: str) -> None:
    """Raise MemoryFault if an active lane's address or mask is undefined, Unsupported inside a function of elements."""
    if machine.combining:
        raise Unsupported(f"a combiner, or a function of elements, that {what}")
    if mask is not None and mask.undefined is not None and bool(mask.undefined.any()):
        raise MemoryFault("undefined", f"{what} with an undefined mask")
    if pointer.undefined is not None:
        active = pointer.undefined if mask is None else pointer.undefined & mask.data
        if bool(active.any()):
            raise MemoryFault("undefined", f"{what} at an undefined address, or one that is made of numbers")


def check_hints(frame: Frame, pointer: Lanes, mask: Lanes | None, type_: Type) -> None:
    """Raise MemoryFault if a vector access would store to other addresses than the kernel's."""
    torn = hint_checks.torn(pointer, mask, type_.item_bytes, access_shape(frame, type_, pointer, mask))
    if torn is not None:
        program = int(torn.nonzero()[0][0]) if torn.shape[0] > 1 else 0
        message = "stores with a wrong promise (multiple_of, max_contiguous, max_constancy)"
        raise MemoryFault("undefined", message, int(frame.programs[program]))


def use_of(type_: Type) -> str:
    """What a load is to its buffer: numbers that may decide where programs go on are indices."""
    return "loads" if type_.is_float else "indexes"


def none_if_false(data: torch.Tensor) -> torch.Tensor | None:
    return data if bool(any_of(data)) else None


def check_active_lanes(
    machine: Machine, frame: Frame, access: MemoryAccess, mask: Lanes, pointer: Lanes, item: int
) -> None:
    """Raise MemoryFault if an active lane is outside the buffer (the whole access may extend into its padding)."""
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


def undefined_at(access: MemoryAccess, item: int) -> torch.Tensor | None:
    if access.buffer.defined is None:
        return None
    unit = access.buffer.unit(item)
    defined = access.gathered(access.buffer.shadow("defined", item), unit, item // unit)
    if item > unit:
        defined = defined.all(-1)
    return none_if_false(~defined)


def access_shape(frame: Frame, type_: Type, *values: Lanes | None) -> tuple[int, ...]:
    """Shape of an access's lanes; the axis of programs has size 1 if all programs do the same."""
    differ = any(value is not None and value.programs > 1 for value in values)
    return (frame.programs.numel() if differ else 1, *(type_.shape or ()))


def shadow_units(buffer: DeviceBuffer, name: str, places: torch.Tensor, item: int) -> torch.Tensor:
    """Shadow elements of items, as a last axis."""
    return buffer.shadow(name, item)[unit_places(places, item, buffer.unit(item))]


def record_reads(
    machine: Machine, buffer: DeviceBuffer, places: torch.Tensor, programs: torch.Tensor, item: int
) -> None:
    """Raise MemoryFault if another program stored what is read, or a thread what TMA reads; record the readers."""
    me = (programs + 1).int().unsqueeze(-1)
    if buffer.writer is not None:
        writer = shadow_units(buffer, "writer", places, item)
        if machine.copies_blocks and not buffer.by_copies and bool((own := (writer == me).any(-1)).any()):
            message = "copies by TMA what its threads stored, which Gluon has no fence for (PTX ISA, proxies)"
            raise MemoryFault("race", message, int(programs[own][0]))
        foreign = (writer != 0) & (writer != MANY) & (writer != me)
        if bool(foreign.any()):
            since = since_units(buffer, "writer", places, item)
            check_race(machine, writer, me.expand(writer.shape), foreign, "reads what", "stored", since)
    reader = buffer.shadow("reader", item)
    where = unit_places(places, item, buffer.unit(item))
    before = reader[where]
    others = (before != 0) & (before != me)
    if bool(others.any()):  # readers ordered by atomic operations: the last one represents them
        them = _released(machine, before.long() - 1, since_units(buffer, "reader", places, item))
        others = others & ~(them & machine.acquired[me.long() - 1])
    reader[where] = torch.where(others, MANY, me)
    note_since(machine, buffer, "reader", where, programs, item)
    after = reader[where]  # of several programs in this chunk, one is recorded
    lost = (after != me) & (after != MANY)
    if bool(lost.any()):
        reader[where[lost]] = MANY


def since_units(buffer: DeviceBuffer, name: str, places: torch.Tensor, item: int) -> torch.Tensor | None:
    """How often the writers or readers of items had released before, as shadow elements; None: never."""
    name = f"{name}_since"
    return None if getattr(buffer, name) is None else shadow_units(buffer, name, places, item)


def note_since(
    machine: Machine, buffer: DeviceBuffer, name: str, where: torch.Tensor, programs: torch.Tensor, item: int
) -> None:
    """Record how often programs have released, in the shadow elements that they now write or read."""
    since, name = machine.releases[programs], f"{name}_since"
    if getattr(buffer, name) is not None or bool(since.any()):
        buffer.shadow(name, item)[where] = since.unsqueeze(-1).expand(where.shape)


def _released(machine: Machine, programs: torch.Tensor, since: torch.Tensor | None) -> torch.Tensor:
    """Whether programs released what they did when they had released `since` times. -1: several programs."""
    later = machine.releases[programs.clamp(min=0)] > (0 if since is None else since)
    return later & (programs >= 0)


def check_race(
    machine: Machine,
    theirs: torch.Tensor,
    mine: torch.Tensor,
    where: torch.Tensor,
    what: str,
    did: str,
    since: torch.Tensor | None,
) -> None:
    """Raise MemoryFault unless their programs released what they did, and mine acquired.

    `since`: how often their programs had released before, None for never.
    """
    if not machine.memory.strict:
        return
    a, b = theirs[where].long() - 1, mine[where].long() - 1
    met = _released(machine, a, None if since is None else since.expand(where.shape)[where]) & machine.acquired[b]
    if bool(met.all()):
        return
    first = int((~met).nonzero()[0])
    other = f"program {int(a[first])}" if int(a[first]) >= 0 else "another program"
    raise MemoryFault("race", f"{what} {other} {did} in the same launch", int(b[first]))
