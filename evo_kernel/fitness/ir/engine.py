"""Runs a function of IR for a chunk of programs at once: control flow, and what every operation needs.

Programs that go different ways are split: a region runs for those that enter it, with their rows of the values
around it, and results are put together again. Nothing runs under a mask, so stores need no care.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from evo_kernel.fitness.ir import hint_checks
from evo_kernel.fitness.ir.lanes import Lanes, nothing, sum_of
from evo_kernel.fitness.ir.memory import DeviceMemory, MemoryFault
from evo_kernel.fitness.ir.parse import Function, IRBlock, IRModule, Operation, Region
from evo_kernel.fitness.ir.types import IRError, Type

MAX_CALLS = 32
MAX_ITERATIONS = 1 << 24
PATIENCE = 1 << 10
"""Iterations of a loop after which a program that may wait for others is taken to do so."""


class Unsupported(IRError):
    """An operation that the executor does not know; the message names it."""


class OutOfTime(Exception):
    """The deadline passed."""


class Stuck(Exception):
    """A program waits for one whose turn has not come."""


class ExecutionObserver(Protocol):
    """Hears what a launch does, to count it."""

    def operation(self, operation: Operation, programs: torch.Tensor, result: Type | None) -> None: ...

    def access(
        self, operation: Operation, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int, shape: tuple
    ) -> None: ...

    def iteration(self, operation: Operation, programs: torch.Tensor) -> None: ...


Handler = Callable[["Machine", "Frame", Operation, "Sequence[Lanes]"], "Sequence[Lanes]"]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Registers a function as what executes operations of these names."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


@dataclass
class Machine:
    """One launch: what all chunks of its programs share."""

    module: IRModule
    memory: DeviceMemory
    grid: tuple[int, int, int]
    deadline: float = float("inf")  # of time.monotonic
    observer: ExecutionObserver | None = None
    reverse: bool = False  # lanes of atomic operations take their turns backwards
    seed: int = 0  # of the orders that the program leaves open
    learns: bool = True  # programs see what atomic operations return: these may put them in an order
    impatient: bool = False  # programs come in an order that those who wait for each other need not stand
    skips_floats: bool = False  # loads of floating-point data bring nothing, and what is computed from it is nothing
    surveys: bool = False  # also what data decides is left out where it stores nothing: what it gives is nothing
    conflicts: list[tuple[int, int]] = field(
        default_factory=list
    )  # (buffer, byte) that two programs store what was skipped
    used: frozenset[str] = frozenset()  # names of results that anything reads
    synchronised: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    promising: bool = False  # the kernel promises something about its values
    depth: int = 0
    _orders: dict[int, torch.Tensor] = field(default_factory=dict)
    combining: bool = False  # runs a combiner, whose operations stand for many: it must not touch memory

    def __post_init__(self) -> None:
        self.promising = self.memory.strict and any(map(hint_checks.made_by, self.module.operations()))
        self.synchronised = torch.zeros(self.grid[0] * self.grid[1] * self.grid[2], dtype=torch.bool)
        self.used = frozenset(
            name
            for operation in self.module.operations()
            for name in (*operation.operands, *(n for s in operation.successors for n in s.operands))
        )

    def call(self, function: Function, arguments: Sequence[Lanes], programs: torch.Tensor) -> Sequence[Lanes]:
        """Run a function for programs with these linear ids. Raises MemoryFault, Unsupported, OutOfTime, IRError."""
        if self.depth >= MAX_CALLS:
            raise IRError(f"functions call each other more than {MAX_CALLS} deep")
        frame = Frame(programs)
        self.depth += 1
        try:
            if len(function.body.blocks) == 1:
                frame.bind(function.body.arguments or function.arguments, arguments)
                return self.block(frame, function.body.blocks[0].operations)
            frame.bind(function.arguments, arguments)
            return self._blocks(frame, function.body, len(function.results))
        finally:
            self.depth -= 1

    def block(self, frame: Frame, operations: Sequence[Operation]) -> Sequence[Lanes]:
        """Execute operations in order; the operands of the last, a terminator, are the result."""
        for operation in operations:
            name = operation.name
            operands = [frame.lookup(n) for n in operation.operands]
            if name in _TERMINATORS:
                return operands
            handler = HANDLERS.get(name)
            if handler is None:
                raise Unsupported(f"the executor does not know the operation {name}")
            if self.skips_floats and name not in _EFFECTS and any(value.is_nothing for value in operands):
                handler = _skip
            try:
                results = handler(self, frame, operation, operands)
                if self.promising:
                    results = self._promised(handler, frame, operation, operands, results)
            except MemoryFault as fault:
                if not hasattr(fault, "operation"):
                    fault.operation = operation  # pyright: ignore[reportAttributeAccessIssue]
                raise
            if self.observer is not None:
                result = operation.results[0].type if operation.results else None
                self.observer.operation(operation, frame.programs, result)
            for value, result in zip(operation.results, results, strict=True):
                if not self.memory.strict:
                    result.undefined = None
                frame.values[value.name] = result
        return []

    def _promised(
        self, handler: Handler, frame: Frame, operation: Operation, operands: Sequence[Lanes], results: Sequence[Lanes]
    ) -> Sequence[Lanes]:
        """Results, with what the compiler takes them for by promises of the kernel."""
        if any(value.promised is not None for value in operands) and hint_checks.follows(operation):
            taken = handler(self, frame, operation, [value.promised or value for value in operands])
            results = [value.taken_for(other) for value, other in zip(results, taken, strict=True)]
        if hint_checks.made_by(operation):
            results = [hint_checks.believed(operation, value) for value in results]
        return results

    def region(self, frame: Frame, region: Region, arguments: Sequence[Lanes] = ()) -> Sequence[Lanes]:
        """Run a region of one block in a frame of its own."""
        inner = Frame(frame.programs, frame)
        inner.bind(region.arguments, arguments)
        return self.block(inner, region.operations)

    def order(self, count: int) -> torch.Tensor:
        """Of elements whose order the program leaves open: drawn, the same for as many elements, never row-major."""
        if count not in self._orders:
            drawn = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed + count))
            self._orders[count] = drawn if bool((drawn[1:] < drawn[:-1]).any()) else drawn.flip(0)
        return self._orders[count]

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise OutOfTime

    def _blocks(self, frame: Frame, body: Region, results: int) -> Sequence[Lanes]:
        """Blocks that branch to each other: programs that go the same way run together, until they return."""
        blocks = {block.label: block for block in body.blocks}
        places = {block.label: place for place, block in enumerate(body.blocks)}
        returned: list[tuple[torch.Tensor, Sequence[Lanes]]] = []
        everyone = torch.arange(frame.programs.numel())
        pending: list[tuple[Frame, IRBlock, torch.Tensor, int]] = [(frame, body.blocks[0], everyone, 0)]
        while pending:
            current, block, rows, steps = pending.pop()
            self.check_time()
            if steps > MAX_ITERATIONS:
                raise OutOfTime
            *before, last = block.operations
            self.block(current, [*before, _NOTHING])
            operands = [current.lookup(n) for n in last.operands] if last.name == "tt.return" else []
            if last.name == "tt.return":
                returned.append((rows, operands))
                continue
            if last.name == "cf.br":
                ways = [(last.successors[0], None)]
            elif last.name == "cf.cond_br":
                yes, no = _split(current.lookup(last.operands[0]), rows.numel(), last)
                ways = [(last.successors[0], yes), (last.successors[1], no)]
            else:
                raise Unsupported(f"the executor does not know the terminator {last.name}")
            for successor, chosen in ways:
                if chosen is not None and chosen.numel() == 0:
                    continue
                target = blocks.get(successor.label)
                if target is None:
                    raise IRError(f"a branch to {successor.label}, which is no block")
                whole = chosen is None or chosen.numel() == rows.numel()
                inner = Frame(
                    current.programs if whole else current.programs[chosen], current, None if whole else chosen
                )
                inner.bind(target.arguments, [inner.lookup(n) for n in successor.operands])
                if self.observer is not None and places[target.label] <= places[block.label]:
                    self.observer.iteration(last, inner.programs)
                pending.append((inner, target, rows if whole else rows[chosen], steps + 1))
        return merged(returned, frame.programs.numel()) if results else []


_EFFECTS = {
    "tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_load", "tt.descriptor_store",
    "tt.descriptor_reduce", "tt.descriptor_gather", "tt.descriptor_scatter", "tt.make_tensor_descriptor", "scf.for",
    "scf.while", "scf.if", "tt.call",
}  # fmt: skip


def _skip(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Sequence[Lanes]:
    """In place of what would compute with data that is not there."""
    return [nothing(value.type) for value in operation.results]


_TERMINATORS = {"scf.yield", "tt.return", "tt.reduce.return", "tt.scan.return", "scf.condition", "cf.nothing"}
_NOTHING = Operation("cf.nothing", (), (), {}, (), (), "", 0, 0)


class Frame:
    """Values that a region can name: its own, and, for the rows of its programs, those of the frames around it."""

    __slots__ = ("parent", "programs", "rows", "values")

    def __init__(self, programs: torch.Tensor, parent: Frame | None = None, rows: torch.Tensor | None = None) -> None:
        """`programs`: linear ids; `rows`: which of the parent's programs they are, None for all."""
        self.programs, self.parent, self.rows = programs, parent, rows
        self.values: dict[str, Lanes] = {}

    def bind(self, names: Sequence, values: Sequence[Lanes]) -> None:
        if len(names) != len(values):
            raise IRError(f"{len(values)} values for {len(names)} arguments")
        for value, lanes in zip(names, values, strict=True):
            self.values[value.name] = lanes

    def lookup(self, name: str) -> Lanes:
        found = self.values.get(name)
        if found is not None:
            return found
        if self.parent is None:
            raise IRError(f"{name} is not defined")
        found = self.parent.lookup(name)
        if self.rows is not None:
            found = found.rows(self.rows)
            self.values[name] = found
        return found


def _split(condition: Lanes, programs: int, operation: Operation) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the programs for which a scalar condition holds, and of the others."""
    del operation
    if condition.undefined is not None and bool(condition.undefined.any()):
        raise MemoryFault("undefined", "branches on a value that is undefined")
    data = condition.data.reshape(-1).expand(programs) if condition.data.numel() == 1 else condition.data.reshape(-1)
    return data.nonzero().squeeze(1), (~data).nonzero().squeeze(1)


def merged(parts: Sequence[tuple[torch.Tensor, Sequence[Lanes]]], programs: int) -> Sequence[Lanes]:
    """Results of groups of programs, given by their rows, as results of all."""
    if len(parts) == 1:
        return parts[0][1]
    order = torch.cat([rows for rows, _ in parts])
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(programs)
    made = []
    for column in zip(*(values for _, values in parts), strict=True):
        type_ = column[0].type
        shape = [max(sizes) for sizes in zip(*(lanes.data.shape[1:] for lanes in column), strict=True)]
        pieces = [lanes.data.expand(rows.numel(), *shape) for lanes, (rows, _) in zip(column, parts, strict=True)]
        undefined = None
        if any(lanes.undefined is not None for lanes in column):
            marks = [_marks(lanes, rows.numel(), shape) for lanes, (rows, _) in zip(column, parts, strict=True)]
            undefined = torch.cat(marks)[inverse]
        value = Lanes(type_, torch.cat(pieces)[inverse], undefined=undefined)
        if any(lanes.promised is not None for lanes in column):
            taken = [(rows, [lanes.promised or lanes]) for lanes, (rows, _) in zip(column, parts, strict=True)]
            value = value.taken_for(merged(taken, programs)[0])
        made.append(value)
    return made


def _marks(lanes: Lanes, programs: int, shape: Sequence[int]) -> torch.Tensor:
    if lanes.undefined is None:
        return torch.zeros((programs, *shape), dtype=torch.bool)
    return torch.broadcast_to(lanes.undefined, (programs, *shape))


# --- control flow ---------------------------------------------------------------------------------------------------


_STORES = {"tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_store", "tt.descriptor_reduce",
           "tt.descriptor_scatter", "tt.call"}  # fmt: skip
_LOADS = {"tt.load", "tt.descriptor_load", "tt.descriptor_gather"}


def _passes_over(machine: Machine, operation: Operation, deciding: Sequence[Lanes]) -> bool:
    """A survey goes on behind regions without stores that depend on data which it skipped.

    Nor with loads, once anything was written: whose programs' results these need would not be known.
    """
    if not machine.surveys or not any(v.undefined is not None and bool(v.undefined.any()) for v in deciding):
        return False
    matter = _STORES | _LOADS if any(buffer.changed for buffer in machine.memory.buffers) else _STORES
    return not any(_holds(region, matter) for region in operation.regions)


def _holds(region: Region, names: set[str]) -> bool:
    """Whether one of these operations is in it, however deep."""
    operations = (operation for block in region.blocks for operation in block.operations)
    return any(o.name in names or any(_holds(inner, names) for inner in o.regions) for o in operations)


@handles("scf.if")
def _if(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Sequence[Lanes]:
    if _passes_over(machine, operation, operands):
        return _skip(machine, frame, operation, operands)
    yes, no = _split(operands[0], frame.programs.numel(), operation)
    parts = []
    for region, rows in zip(operation.regions, (yes, no), strict=False):
        if rows.numel() == frame.programs.numel():
            return machine.region(frame, region)
        if rows.numel():
            inner = Frame(frame.programs[rows], frame, rows)
            parts.append((rows, machine.block(inner, region.operations)))
    return merged(parts, frame.programs.numel()) if operation.results else []


@handles("scf.for")
def _for(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Sequence[Lanes]:
    low, high, step, *carried = operands
    if _passes_over(machine, operation, operands[:3]):
        return _skip(machine, frame, operation, operands)
    if any(bound.undefined is not None and bool(bound.undefined.any()) for bound in operands[:3]):
        raise MemoryFault("undefined", "loops between bounds that are undefined")
    counts = _trip_counts(low, high, step, "unsigned" in operation.words)
    body = operation.regions[0]
    index = body.arguments[0].type
    loop = _Loop(machine, frame, carried)
    trips = 0
    while True:
        over = trips >= counts if isinstance(counts, int) else not loop.keep(counts[loop.rows] > trips)
        if over:
            return loop.finish()
        counter = _counter(index, loop.of(low), loop.of(step), trips)
        loop.carried = list(machine.region(loop.frame, body, [counter, *loop.carried]))
        trips += 1
        if machine.observer is not None:
            machine.observer.iteration(operation, loop.frame.programs)
        machine.check_time()


def _counter(type_: Type, low: Lanes, step: Lanes, trips: int) -> Lanes:
    made = Lanes(type_, sum_=low.sum.plus(step.sum.times(trips)))
    if low.promised is None and step.promised is None:
        return made
    return made.taken_for(_counter(type_, low.promised or low, step.promised or step, trips))


def _trip_counts(low: Lanes, high: Lanes, step: Lanes, unsigned: bool) -> int | torch.Tensor:
    """Iterations of each program; one number where all have the same."""
    numbers = [number for bound in (low, high, step) if (number := bound.integer()) is not None]
    if len(numbers) == 3:
        a, b, c = (_unsigned(number, low.type) if unsigned else number for number in numbers)
        if c <= 0:
            raise MemoryFault("undefined", f"loops with a step of {c}")
        return max(0, -(-(b - a) // c))
    a, b, c = (bound.data.long().reshape(-1) for bound in (low, high, step))
    if bool((c <= 0).any()) or (unsigned and bool(((a < 0) | (b < 0)).any())):
        raise MemoryFault("undefined", "loops with a step or bounds below zero")
    counts = torch.div(b - a + c - 1, c, rounding_mode="floor").clamp(min=0)
    made = sum_of(counts)
    return made.constant if not made.terms else counts


def _unsigned(number: int, type_: Type) -> int:
    return number % (1 << type_.bits)


class _Loop:
    """Programs that are still in a loop, their carried values, and the results of those that left."""

    def __init__(self, machine: Machine, frame: Frame, carried: Sequence[Lanes]) -> None:
        self.machine, self.outer, self.frame = machine, frame, frame
        self.carried = list(carried)
        self.rows = torch.arange(frame.programs.numel())
        self._left: list[tuple[torch.Tensor, Sequence[Lanes]]] = []

    def keep(self, staying: torch.Tensor, results: Sequence[Lanes] | None = None) -> bool:
        """Let the others leave with their carried values (or `results`); false when nobody stays."""
        if bool(staying.all()):
            return True
        leaving = (~staying).nonzero().squeeze(1)
        kept = staying.nonzero().squeeze(1)
        values = self.carried if results is None else results
        self._left.append((self.rows[leaving], [lanes.rows(leaving) for lanes in values]))
        self.rows = self.rows[kept]
        if kept.numel() == 0:
            return False
        self.carried = [lanes.rows(kept) for lanes in self.carried]
        self.frame = Frame(self.outer.programs[self.rows], self.outer, self.rows)
        return True

    def of(self, value: Lanes) -> Lanes:
        """A value of the frame around the loop, for those who stay."""
        return value if self.frame is self.outer else value.rows(self.rows)

    def finish(self) -> Sequence[Lanes]:
        if not self._left:
            return self.carried
        if self.rows.numel():
            self._left.append((self.rows, self.carried))
        return merged(self._left, self.outer.programs.numel())


@handles("scf.while")
def _while(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Sequence[Lanes]:
    before, after = operation.regions
    loop = _Loop(machine, frame, operands)
    for trips in range(MAX_ITERATIONS):
        if machine.impatient and trips > PATIENCE:
            raise Stuck
        condition, *passed = machine.region(loop.frame, before, loop.carried)
        if _passes_over(machine, operation, [condition]):
            return _skip(machine, frame, operation, operands)
        yes, _ = _split(condition, loop.rows.numel(), operation)
        staying = torch.zeros(loop.rows.numel(), dtype=torch.bool)
        staying[yes] = True
        loop.carried = passed
        if not loop.keep(staying, passed):
            return loop.finish()
        loop.carried = list(machine.region(loop.frame, after, loop.carried))
        if machine.observer is not None:
            machine.observer.iteration(operation, loop.frame.programs)
        machine.check_time()
    raise OutOfTime


@handles("tt.call")
def _call(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Sequence[Lanes]:
    function = machine.module.functions.get(operation.attributes["callee"])
    if function is None:
        raise IRError(f"{operation.attributes['callee']} is called and not defined")
    return machine.call(function, operands, frame.programs)
