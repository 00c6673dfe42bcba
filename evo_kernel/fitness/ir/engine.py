"""Runs an IR function for a chunk of programs at once: control flow and operand lookup; other modules hold operations.

If programs take different branches they are split: a region runs for the programs that enter it, with their rows of the
surrounding values, and results are merged afterwards. No operation runs under a mask, so stores need no special care.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from evo_kernel.fitness.ir import hint_checks
from evo_kernel.fitness.ir.early_loads import LatestStores
from evo_kernel.fitness.ir.lanes import AddressWord, Lanes, as_address, as_number, nothing
from evo_kernel.fitness.ir.memory import DeviceMemory, MemoryFault
from evo_kernel.fitness.ir.module import Function, IRBlock, IRModule, Operation, Region
from evo_kernel.fitness.ir.running_program import RunningProgram, Steps
from evo_kernel.fitness.ir.types import IRError, Type

MAX_CALLS = 32
MAX_ITERATIONS = 1 << 24
MOST_KNOWN = 256
"""Results of one operation that are kept, by its operands; and elements of each."""
PATIENCE = 1 << 10
"""Iterations of a loop after which a program that may wait for others counts as waiting."""


class Unsupported(IRError):
    """An operation that the executor does not support; the message names it."""


class OutOfTime(Exception):
    """The deadline passed."""


class Stuck(Exception):
    """A program waits for one that has not run yet."""


class ExecutionObserver(Protocol):
    """Observes the operations, accesses and iterations of a launch, to count them."""

    def operation(self, operation: Operation, programs: torch.Tensor, result: Type | None) -> None: ...

    def access(
        self, operation: Operation, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int, shape: tuple
    ) -> None: ...

    def iteration(self, operation: Operation, programs: torch.Tensor) -> None: ...

    def waited(self, program: int, latencies: int) -> None:
        """A group of warps has waited for copies so often that none of these waits could overlap with another."""
        ...

    def library(self, programs: torch.Tensor, elements: int, instructions: torch.Tensor) -> None:
        """Loops inside a library function, for a tensor of `elements`: `instructions` of a warp, for 32 of them."""
        ...


Handler = Callable[["Machine", "Frame", Operation, "Sequence[Lanes]"], "Sequence[Lanes] | Steps"]
_Handler = TypeVar("_Handler", bound=Handler)
HANDLERS: dict[str, Handler] = {}
_Step = tuple[Handler | None, "dict[tuple[Lanes | int, ...], Sequence[Lanes]] | None", bool]
"""How an operation is executed: by a handler, or as a terminator; its results by operands, where they depend on nothing
else; and whether it may be skipped with its data."""


def ended(results: Sequence[Lanes] | Steps) -> Sequence[Lanes]:
    """The results of an execution that waits for no other group of warps."""
    if not isinstance(results, Generator):
        return results
    try:
        next(results)
    except StopIteration as end:
        return end.value
    raise IRError("a group of warps waits where there is none")


def handles(*names: str) -> Callable[[_Handler], _Handler]:
    """Register a function as the handler of operations with these names."""

    def register(handler: _Handler) -> _Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


@dataclass
class Machine:
    """One launch: state shared by all chunks of its programs."""

    module: IRModule
    memory: DeviceMemory
    grid: tuple[int, int, int]
    deadline: float = float("inf")  # of time.monotonic
    observer: ExecutionObserver | None = None
    reverse: bool = False  # order of lanes in atomic operations
    seed: int = 0  # for orders that the program leaves open
    learns: bool = True  # atomic operations return values, which may order programs
    impatient: bool = False  # programs may run in an order that programs which wait for each other cannot
    skips_floats: bool = False  # floating-point data is neither loaded nor computed
    copies_blocks: bool = False  # what loads now is TMA
    surveys: bool = False  # also skip what depends on skipped data, if it stores nothing
    heeds_loads: bool | None = None  # and loads nothing; None: where something was stored before
    conflicts: list[tuple[int, int]] = field(
        default_factory=list
    )  # (buffer, byte) that two programs store what was skipped
    used: frozenset[str] = frozenset()  # names of results that are read
    acquired: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    releases: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))
    running: RunningProgram | None = None  # the program that runs alone, because it has shared memory
    promising: bool = False  # the kernel has hints about its values
    latest: LatestStores | None = None  # of the pipelined loop that runs
    depth: int = 0
    _steps: dict[Operation, _Step] = field(default_factory=dict)
    _orders: dict[int, torch.Tensor] = field(default_factory=dict)
    combining: bool = (
        False  # inside a combiner or a function of elements, whose operations represent many: no memory, no calls
    )

    def __post_init__(self) -> None:
        self.promising = self.memory.strict and any(map(hint_checks.made_by, self.module.operations()))
        programs = math.prod(self.grid)
        self.acquired = torch.zeros(programs, dtype=torch.bool)  # programs that an atomic operation let see others'
        self.releases = torch.zeros(programs, dtype=torch.int32)  # how often each published its accesses
        self.used = frozenset(
            name
            for operation in self.module.operations()
            for name in (*operation.operands, *(n for s in operation.successors for n in s.operands))
        )

    def call(self, function: Function, arguments: Sequence[Lanes], programs: torch.Tensor) -> Steps:
        """Run a function for programs with these linear ids. Raises MemoryFault, Unsupported, OutOfTime, IRError."""
        if self.depth >= MAX_CALLS:
            raise IRError(f"functions call each other more than {MAX_CALLS} deep")
        frame = Frame(programs)
        self.depth += 1
        try:
            if len(function.body.blocks) == 1:
                frame.bind(function.body.arguments or function.arguments, arguments)
                return (yield from self.block(frame, function.body.blocks[0].operations))
            frame.bind(function.arguments, arguments)
            return (yield from self._blocks(frame, function.body, len(function.results)))
        finally:
            self.depth -= 1

    def block(self, frame: Frame, operations: Sequence[Operation]) -> Steps:
        """Execute operations in order. The operands of the last one, a terminator, are the result."""
        for operation in operations:
            operands = [frame.lookup(n) for n in operation.operands]
            step = self._steps.get(operation)
            if step is None:
                step = self._steps[operation] = self._step(operation)
            handler, known, may_skip = step
            if handler is None:
                return operands
            key, results = (), None
            if known is not None:
                key = tuple([value if (number := value.scalar) is None else number for value in operands])
                results = known.get(key)
            if results is None:
                if may_skip and any(value.is_nothing for value in operands):
                    handler = skip_operation
                try:
                    results = handler(self, frame, operation, operands)
                    if isinstance(results, Generator):
                        results = yield from results
                    if self.promising:
                        results = self._promised(handler, frame, operation, operands, results)
                except MemoryFault as fault:
                    if not hasattr(fault, "operation"):
                        fault.operation = operation  # pyright: ignore[reportAttributeAccessIssue]
                    raise
                if known is not None:
                    if len(known) >= MOST_KNOWN:
                        known.clear()
                    if sum(data.numel() for value in results for data in value.tensors()) <= MOST_KNOWN:
                        known[key] = results
            if self.observer is not None:
                result = operation.results[0].type if operation.results else None
                self.observer.operation(operation, frame.programs, result)
            for value, result in zip(operation.results, results, strict=True):
                if not self.memory.strict:
                    result.undefined = None
                frame.values[value.name] = result
        return []

    def _step(self, operation: Operation) -> _Step:
        if operation.name in _TERMINATORS:
            return None, None, False
        handler = HANDLERS.get(operation.name)
        if handler is None:
            raise Unsupported(f"the executor does not know the operation {operation.name}")
        follows = hint_checks.follows(operation) and not any(value.type.is_float for value in operation.results)
        follows = follows and operation.name not in _OF_FLOATS and not self.promising
        keeps = bool(operation.results) and (follows or operation.name in ("arith.constant", "tt.make_range"))
        return handler, {} if keeps else None, self.skips_floats and operation.name not in _EFFECTS

    def _promised(
        self, handler: Handler, frame: Frame, operation: Operation, operands: Sequence[Lanes], results: Sequence[Lanes]
    ) -> Sequence[Lanes]:
        """Results, with the values that the compiler assumes because of hints."""
        if any(value.promised is not None for value in operands) and hint_checks.follows(operation):
            believed = [value.promised or value for value in operands]
            taken = ended(handler(self, frame, operation, believed))
            hint_checks.refuse_wraps(operation, believed, taken[0])
            results = [value.taken_for(other) for value, other in zip(results, taken, strict=True)]
        if hint_checks.made_by(operation):
            results = [hint_checks.believed(operation, value) for value in results]
        return results

    def mapped(self, frame: Frame, region: Region, results: int) -> Steps:
        """Run a function's region, of one block or of several that branch to each other."""
        if len(region.blocks) == 1:
            return self.block(frame, region.operations)
        return self._blocks(frame, region, results)

    def region(self, frame: Frame, region: Region, arguments: Sequence[Lanes] = ()) -> Steps:
        """Run a region with one block in its own frame."""
        inner = Frame(frame.programs, frame)
        inner.bind(region.arguments, arguments)
        return self.block(inner, region.operations)

    def order(self, count: int) -> torch.Tensor:
        """A random order of elements: the same for the same count, never row-major."""
        if count not in self._orders:
            drawn = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed + count))
            self._orders[count] = drawn if bool((drawn[1:] < drawn[:-1]).any()) else drawn.flip(0)
        return self._orders[count]

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise OutOfTime

    def _blocks(self, frame: Frame, body: Region, results: int) -> Steps:
        """Run blocks that branch to each other: programs with the same next block run together, until they return."""
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
            yield from self.block(current, [*before, _NOTHING])
            if last.name in ("tt.return", "tt.map_elementwise.return"):
                returned.append((rows, [current.lookup(n) for n in last.operands]))
                continue
            if last.name == "cf.br":
                ways = [(last.successors[0], None)]
            elif last.name == "cf.cond_br":
                yes, no = split_rows(current.lookup(last.operands[0]), rows.numel())
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
    "scf.while", "scf.if", "tt.call", "ttg.local_alloc", "ttg.local_store", "ttg.memdesc_index",
    "ttng.async_tma_copy_global_to_local", "ttng.async_tma_copy_local_to_global", "ttg.warp_specialize",
    "ttg.async_copy_global_to_local", "ttg.async_commit_group", "ttg.async_wait", "ttg.local_gather",
    "ttg.local_scatter",
}  # fmt: skip


_OF_FLOATS = {"arith.bitcast", "tt.bitcast", "arith.fptosi", "arith.fptoui", "arith.cmpf"}
"""Whose operands are floats, which are new each time."""


def skip_operation(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Sequence[Lanes]:
    """Replacement of operations on skipped data."""
    return [nothing(value.type) for value in operation.results]


_TERMINATORS = {
    "scf.yield",
    "tt.return",
    "tt.reduce.return",
    "tt.scan.return",
    "tt.map_elementwise.return",
    "scf.condition",
    "cf.nothing",
    "ttg.warp_yield",
    "ttg.warp_return",
}
_NOTHING = Operation("cf.nothing", (), (), {}, (), (), "", 0, 0)


class Frame:
    """Values visible in a region: its own, and those of enclosing frames for the rows of its programs."""

    __slots__ = ("parent", "programs", "rows", "values")

    def __init__(self, programs: torch.Tensor, parent: Frame | None = None, rows: torch.Tensor | None = None) -> None:
        """`programs`: linear ids; `rows`: their positions among the parent's programs, None for all."""
        self.programs, self.parent, self.rows = programs, parent, rows
        self.values: dict[str, Lanes] = {}

    def bind(self, names: Sequence, values: Sequence[Lanes]) -> None:
        if len(names) != len(values):
            raise IRError(f"{len(values)} values for {len(names)} arguments")
        for value, lanes in zip(names, values, strict=True):
            self.values[value.name] = lanes

    def lookup(self, name: str) -> Lanes:
        frame = self
        while name not in frame.values:
            if frame.parent is None:
                raise IRError(f"{name} is not defined")
            if frame.rows is not None:
                frame.values[name] = frame.parent.lookup(name).rows(frame.rows)
            else:
                frame = frame.parent
        return frame.values[name]


def split_rows(condition: Lanes, programs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the programs for which a scalar condition holds, and of the others."""
    if condition.undefined is not None and bool(condition.undefined.any()):
        raise MemoryFault("undefined", "branches on a value that is undefined")
    data = condition.data.reshape(-1).expand(programs) if condition.data.numel() == 1 else condition.data.reshape(-1)
    return data.nonzero().squeeze(1), (~data).nonzero().squeeze(1)


def merged(parts: Sequence[tuple[torch.Tensor, Sequence[Lanes]]], programs: int) -> Sequence[Lanes]:
    """Merge results of groups of programs, given by their rows."""
    if len(parts) == 1:
        return parts[0][1]
    order = torch.cat([rows for rows, _ in parts])
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(programs)
    merged_lanes = []
    for column in zip(*(values for _, values in parts), strict=True):
        type_ = column[0].type
        if any(isinstance(lanes, AddressWord) for lanes in column):
            sides = [
                [(r, [side(v)]) for v, (r, _) in zip(column, parts, strict=True)] for side in (as_address, as_number)
            ]
            merged_lanes.append(AddressWord(*(merged(side, programs)[0] for side in sides)))
            continue
        shape = [max(sizes) for sizes in zip(*(lanes.extents[1:] for lanes in column), strict=True)]
        pieces = [lanes.data.expand(rows.numel(), *shape) for lanes, (rows, _) in zip(column, parts, strict=True)]
        undefined = None
        if any(lanes.undefined is not None for lanes in column):
            marks = [lanes.marks((rows.numel(), *shape)) for lanes, (rows, _) in zip(column, parts, strict=True)]
            undefined = torch.cat(marks)[inverse]
        value = Lanes(type_, torch.cat(pieces)[inverse], undefined=undefined)
        if any(lanes.promised is not None for lanes in column):
            taken = [(rows, [lanes.promised or lanes]) for lanes, (rows, _) in zip(column, parts, strict=True)]
            value = value.taken_for(merged(taken, programs)[0])
        merged_lanes.append(value)
    return merged_lanes
