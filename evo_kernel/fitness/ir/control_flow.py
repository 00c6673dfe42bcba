"""Handlers of control flow: branches, loops and calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evo_kernel.fitness.ir.early_loads import latest_stores
from evo_kernel.fitness.ir.engine import (
    MAX_ITERATIONS,
    PATIENCE,
    Frame,
    Machine,
    OutOfTime,
    Stuck,
    Unsupported,
    handles,
    merged,
    skip_operation,
    split_rows,
)
from evo_kernel.fitness.ir.lanes import Lanes, sum_of
from evo_kernel.fitness.ir.memory import MemoryFault
from evo_kernel.fitness.ir.module import LOADS, STORES, Operation
from evo_kernel.fitness.ir.pointwise import as_sum
from evo_kernel.fitness.ir.running_program import Steps
from evo_kernel.fitness.ir.types import IRError, Type

_STORES = STORES | {"tt.call"}


def _passes_over(machine: Machine, operation: Operation, deciding: Sequence[Lanes]) -> bool:
    """Whether a survey may skip regions: they hold no stores that depend on skipped data.

    They must hold no loads either where these are counted, or, unless the machine says otherwise, after a write: it
    would be unknown which programs' results are loaded.
    """
    if not machine.surveys or not any(v.undefined is not None and bool(v.undefined.any()) for v in deciding):
        return False
    loads = machine.heeds_loads
    if loads is None:
        loads = any(buffer.changed for buffer in machine.memory.buffers)
    matter = _STORES | LOADS if loads else _STORES
    return not any(inner.name in matter for region in operation.regions for inner in region.walk())


@handles("scf.if")
def _if(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Steps:
    if _passes_over(machine, operation, operands):
        return skip_operation(machine, frame, operation, operands)
    if (known := operands[0].scalar) is not None:
        taken = operation.regions[:1] if known else operation.regions[1:]
        return (yield from machine.region(frame, taken[0])) if taken else []
    yes, no = split_rows(operands[0], frame.programs.numel())
    parts = []
    for region, rows in zip(operation.regions, (yes, no), strict=False):
        if rows.numel() == frame.programs.numel():
            return (yield from machine.region(frame, region))
        if rows.numel():
            inner = Frame(frame.programs[rows], frame, rows)
            parts.append((rows, (yield from machine.block(inner, region.operations))))
    return merged(parts, frame.programs.numel()) if operation.results else []


@handles("scf.for")
def _for(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Steps:
    low, high, step, *carried = operands
    if _passes_over(machine, operation, operands[:3]):
        return skip_operation(machine, frame, operation, operands)
    if any(bound.undefined is not None and bool(bound.undefined.any()) for bound in operands[:3]):
        raise MemoryFault("undefined", "loops between bounds that are undefined")
    counts = _trip_counts(low, high, step, "unsigned" in operation.words)
    body = operation.regions[0]
    index = body.arguments[0].type
    loop = _Loop(machine, frame, carried)
    around, trips = machine.latest, 0
    machine.latest = around or latest_stores(operation, machine.module.ahead, machine.memory, machine.skips_floats)
    while True:
        over = trips >= counts if isinstance(counts, int) else not loop.keep(counts[loop.rows] > trips)
        if over:
            machine.latest = around
            return loop.finish()
        if machine.latest is not None and (trips or around is None):  # flattened, the first round is the outer loop's
            machine.latest.begin_round()
        counter = _counter(index, loop.of(low), loop.of(step), trips)
        loop.carried = list((yield from machine.region(loop.frame, body, [counter, *loop.carried])))
        trips += 1
        if machine.observer is not None:
            machine.observer.iteration(operation, loop.frame.programs)
        machine.check_time()


def _counter(type_: Type, low: Lanes, step: Lanes, trips: int) -> Lanes:
    counter = as_sum(type_, low.sum.plus(step.sum.times(trips)), None)  # without a sign, it may wrap
    if low.promised is None and step.promised is None:
        return counter
    return counter.taken_for(_counter(type_, low.promised or low, step.promised or step, trips))


_ENDLESS = "loops until its counter overflows, which has no end on a GPU"


def _trip_counts(low: Lanes, high: Lanes, step: Lanes, unsigned: bool) -> int | torch.Tensor:
    """Iterations of each program; one number if all have the same. Raises MemoryFault if the counter overflows."""
    most = (1 << low.type.bits - (not unsigned)) - 1
    numbers = [number for bound in (low, high, step) if (number := bound.integer()) is not None]
    if len(numbers) == 3:
        a, b, c = (number % (1 << low.type.bits) if unsigned else number for number in numbers)
        if c <= 0:
            raise MemoryFault("undefined", f"loops with a step of {c}")
        count = max(0, -(-(b - a) // c))
        if count and a + count * c > most:
            raise MemoryFault("undefined", _ENDLESS)
        return count
    a, b, c = (bound.data.long().reshape(-1) for bound in (low, high, step))
    if bool((c <= 0).any()) or (unsigned and bool(((a < 0) | (b < 0)).any())):
        raise MemoryFault("undefined", "loops with a step or bounds below zero")
    counts = torch.div(b - a + c - 1, c, rounding_mode="floor").clamp(min=0)
    if low.type.bits < 64 and bool(((counts > 0) & (a + counts * c > most)).any()):
        raise MemoryFault("undefined", _ENDLESS)
    total = sum_of(counts)
    return total.constant if not total.terms else counts


class _Loop:
    """Programs still in a loop, their carried values, and the results of those that left."""

    def __init__(self, machine: Machine, frame: Frame, carried: Sequence[Lanes]) -> None:
        self.machine, self.outer, self.frame = machine, frame, frame
        self.carried = list(carried)
        self.rows = torch.arange(frame.programs.numel())
        self._left: list[tuple[torch.Tensor, Sequence[Lanes]]] = []

    def keep(self, staying: torch.Tensor, results: Sequence[Lanes] | None = None) -> bool:
        """Remove all but the `staying` programs, with their carried values or `results`; False if none stays."""
        if bool(staying.all()):
            return True
        leaving = (~staying).nonzero().squeeze(1)
        rows = staying.nonzero().squeeze(1)
        values = self.carried if results is None else results
        self._left.append((self.rows[leaving], [lanes.rows(leaving) for lanes in values]))
        self.rows = self.rows[rows]
        if rows.numel() == 0:
            return False
        self.carried = [lanes.rows(rows) for lanes in self.carried]
        self.frame = Frame(self.outer.programs[self.rows], self.outer, self.rows)
        return True

    def of(self, value: Lanes) -> Lanes:
        """A value of the enclosing frame for the remaining programs."""
        return value if self.frame is self.outer else value.rows(self.rows)

    def finish(self) -> Sequence[Lanes]:
        if not self._left:
            return self.carried
        if self.rows.numel():
            self._left.append((self.rows, self.carried))
        return merged(self._left, self.outer.programs.numel())


@handles("scf.while")
def _while(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Steps:
    before, after = operation.regions
    loop = _Loop(machine, frame, operands)
    before_trip: list[torch.Tensor] = []
    for trips in range(MAX_ITERATIONS):
        if machine.impatient and trips > PATIENCE:
            raise Stuck
        if machine.learns and trips in (PATIENCE, PATIENCE + 1):
            now = _state(machine, loop)
            if len(now) == len(before_trip) and all(map(torch.equal, now, before_trip)):
                raise Unsupported(
                    "a program that waits for one with a greater id, as at a barrier of the whole grid: programs run "
                    "one after the other"
                )
            before_trip = now
        condition, *passed = yield from machine.region(loop.frame, before, loop.carried)
        if _passes_over(machine, operation, [condition]):
            return skip_operation(machine, frame, operation, operands)
        loop.carried = passed
        if not condition.scalar:
            yes, _ = split_rows(condition, loop.rows.numel())
            staying = torch.zeros(loop.rows.numel(), dtype=torch.bool)
            staying[yes] = True
            if not loop.keep(staying, passed):
                return loop.finish()
        loop.carried = list((yield from machine.region(loop.frame, after, loop.carried)))
        if machine.observer is not None:
            machine.observer.iteration(operation, loop.frame.programs)
        machine.check_time()
    raise OutOfTime


def _state(machine: Machine, loop: _Loop) -> list[torch.Tensor]:
    """All that an iteration can change. If one does not, no later one does: nothing else runs meanwhile."""
    stored = (buffer for buffer in machine.memory.buffers if buffer.changed or buffer.writer is not None)
    return [loop.rows, *(value.data.clone() for value in loop.carried), *(buffer.storage.clone() for buffer in stored)]


@handles("tt.call")
def _call(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Steps:
    function = machine.module.functions.get(operation.attributes["callee"])
    if function is None:
        raise IRError(f"{operation.attributes['callee']} is called but not defined")
    if machine.combining:
        raise Unsupported("a combiner, or a function of elements, that calls a function which is not inlined")
    return machine.call(function, operands, frame.programs)
