"""Executes a launch: binds its arguments, runs programs in chunks, and returns findings."""

from __future__ import annotations

import itertools
import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from evo_kernel.fitness.ir import casts, control_flow, mapping, reductions, shapes, warp_groups  # noqa: F401  they register handlers
from evo_kernel.fitness.ir.descriptors import DeviceDescriptor as DescriptorLanes
from evo_kernel.fitness.ir.descriptors import block_of
from evo_kernel.fitness.ir.engine import HANDLERS, ExecutionObserver, Machine, ended
from evo_kernel.fitness.ir.lanes import Lanes, Sum
from evo_kernel.fitness.ir.memory import DeviceBuffer, DeviceMemory, MemoryFault
from evo_kernel.fitness.ir.module import (
    ATOMICS,
    COPIES_IN,
    LOADS,
    STORES,
    Function,
    IRModule,
    IRValue,
    Operation,
    Region,
)
from evo_kernel.fitness.ir.rounds import spins_of
from evo_kernel.fitness.ir.types import IRError, Type
from evo_kernel.fitness.plan.launch_plan import ITEM_BYTES, Arg, Descriptor, Pointer, Scalar, closure

CHUNK_ELEMENTS = 1 << 18
"""Elements of the largest tensor of a chunk, so that temporaries fit the CPU's caches."""
MAX_CHUNK = 1 << 14
SURVEYED_ELEMENTS = 1 << 26
"""Likewise without floating-point data, when most tensors are addresses, which stay small: integers may not."""

_Scope = ChainMap[str, int]
_LOADS = LOADS | ATOMICS | {"tt.descriptor_reduce"}


@dataclass(frozen=True)
class ExecutionFinding:
    """A fault of a launch that no correct kernel has. `program`: its grid indices; `line`: 0 if unknown."""

    kind: str
    message: str
    program: tuple[int, int, int] | None
    operation: str
    ordinal: int
    line: int

    @property
    def sentence(self) -> str:
        who = f"program {self.program}" if self.program is not None else "the kernel"
        where = f" (line {self.line}: {self.operation})" if self.line else f" ({self.operation})"
        return f"{who} {self.message}{where}"


@dataclass(frozen=True)
class Launched:
    """Result of a launch: the finding that ended it early, if any."""

    finding: ExecutionFinding | None = None
    conflicts: tuple[tuple[int, int], ...] = ()  # (buffer, byte) to which several programs store skipped data


@dataclass(frozen=True)
class Reach:
    """Where accesses of some kind may go: through which arguments, and by addresses in tables of which arguments."""

    arguments: frozenset[int]
    tables: frozenset[int]


@dataclass(frozen=True)
class Traits:
    """Properties of a kernel that follow from its text."""

    largest: int  # elements of its largest tensor
    updates: bool  # atomic operations, through which programs may affect each other
    in_order: bool  # it uses their results
    waits: bool  # a loop waits for other programs: one program at a time
    alone: bool  # it has shared memory of its own, or groups of warps: one program at a time
    loaded: Reach  # of loads
    indexed: Reach  # of loads of other types than floating-point
    stored: Reach


def unsupported(module: IRModule) -> str:
    """The first unsupported operation, or clusters: each block has barriers of its own; empty if all is supported."""
    known = HANDLERS.keys() | {"ttg.warp_yield", "ttg.warp_return", "scf.yield", "tt.return", "tt.reduce.return",
                               "tt.scan.return",
                               "tt.map_elementwise.return", "scf.condition", "cf.br", "cf.cond_br"}  # fmt: skip
    names = [o.name for o in module.operations()]
    unknown = next((name for name in names if name not in known), "")
    shares = module.blocks > 1 and any(name.startswith("ttng.") for name in names)
    return unknown or ("clusters of blocks" if shares else "")


def traits_of(module: IRModule) -> Traits:
    operations = list(module.operations())
    largest = max((r.type.elements for o in operations for r in o.results), default=1)
    used = {name for o in operations for name in (*o.operands, *(n for s in o.successors for n in s.operands))}
    atomics = [o for o in operations if o.name in ATOMICS]
    in_order = any(o.results and o.results[0].name in used for o in atomics)
    alone = any(o.name in ("ttg.local_alloc", "ttg.warp_specialize") for o in operations)
    updates = bool(atomics) or any(o.name == "tt.descriptor_reduce" for o in operations)
    return Traits(largest, updates, in_order, bool(spins_of(module)), alone, *_roots(module))


def _roots(module: IRModule) -> tuple[Reach, Reach, Reach]:
    """Where loads, integer loads and stores may go; anywhere if a function is called."""
    entry = module.entry
    if len(module.functions) > 1:
        everything = Reach(*(frozenset(range(len(entry.arguments))),) * 2)
        return everything, everything, everything
    sources: dict[int, set[int]] = {}
    accesses: list[tuple[Operation, int, list[int]]] = []
    numbers = itertools.count()
    scope = _Scope({value.name: next(numbers) for value in entry.arguments})
    inner = _flows(entry.body, scope, numbers, sources, accesses)
    if entry.body.blocks:  # whose arguments may stand for those of the function
        sources |= {inner[v.name]: {scope[w.name]} for v, w in zip(entry.body.arguments, entry.arguments, strict=False)}
    loads = {result: address for operation, address, results in accesses for result in results}
    positions = {scope[value.name]: place for place, value in enumerate(entry.arguments)}

    def reach(values: Iterable[int]) -> Reach:
        seen, pending = set(), [(value, False) for value in values]
        while pending:
            current, by_table = pending.pop()
            if (current, by_table) in seen:
                continue
            seen.add((current, by_table))
            pending += [(source, by_table) for source in sources.get(current, ())]
            pending += [(loads[current], True)] if current in loads else []
        found = [{positions[value] for value, way in seen if way is by and value in positions} for by in (False, True)]
        return Reach(*map(frozenset, found))

    def is_float(operation: Operation) -> bool:
        if operation.name in COPIES_IN:  # have no result that tells
            copied = operation.types[0].pointee or block_of(operation.types[0])
            return copied.is_float
        return all(value.type.is_float for value in operation.results)

    floats = {o.ordinal for o, *_ in accesses if is_float(o)}
    return (
        reach(value for o, value, _ in accesses if o.name in _LOADS),
        reach(value for o, value, _ in accesses if o.name in _LOADS and o.ordinal not in floats),
        reach(value for o, value, _ in accesses if o.name in STORES),
    )


def _flows(
    region: Region, outer: _Scope, numbers: Iterator[int], sources: dict[int, set[int]],
    accesses: list[tuple[Operation, int, list[int]]],
) -> _Scope:  # fmt: skip
    """Record which values the addresses in a region may derive from; returns the numbers of its values.

    `accesses`: with the number of the address, and of what tt.load gives. Regions side by side may use the same names.
    """
    scope = outer.new_child()
    for block in region.blocks:
        values = (*block.arguments, *(value for operation in block.operations for value in operation.results))
        scope.update({value.name: next(numbers) for value in values})
    labels = {block.label: block for block in region.blocks}

    def of(names: Iterable[str], where: _Scope = scope) -> list[int]:
        return [where.get(name, -1) for name in names]  # the IR is untrusted

    def passed(values: Sequence[IRValue], given: Sequence[int], where: _Scope = scope) -> None:
        for value, source in zip(values, given, strict=True):
            sources.setdefault(where[value.name], set()).add(source)

    for block in region.blocks:
        for operation in block.operations:
            results, operands = of(value.name for value in operation.results), of(operation.operands)
            if operation.name in _LOADS or operation.name in STORES:
                accesses.append((operation, operands[0], results if operation.name == "tt.load" else []))
            for successor in operation.successors:
                passed(labels[successor.label].arguments, of(successor.operands))
            inner = [(each, _flows(each, scope, numbers, sources, accesses)) for each in operation.regions]
            if operation.name == "ttg.warp_specialize":  # each group of warps gets all operands, by position
                for each, within in inner[1:]:
                    passed(each.arguments, operands, within)
                continue
            from_, made = [*operands], [*zip(operation.results, results, strict=True)]
            for each, within in inner:
                for one in each.blocks:
                    from_ += of(one.operations[-1].operands, within) if one.operations else []
                    made += [(value, within[value.name]) for value in one.arguments]
            if operation.name == "tt.load":
                from_ = []
            for value, number in made:
                may_point = value.type.element in ("ptr", "desc", "i64")
                sources.setdefault(number, set()).update(from_ if may_point else ())
    return scope


def launch(
    module: IRModule,
    grid: tuple[int, int, int],
    args: Sequence[Arg],
    memory: DeviceMemory,
    *,
    programs: torch.Tensor | None = None,
    seed: int = 0,
    deadline: float = math.inf,
    observer: ExecutionObserver | None = None,
    reverse: bool = False,
    skips_floats: bool = False,
    surveys: bool = False,
    heeds_loads: bool | None = None,
    traits: Traits | None = None,
    shuffled: bool = False,
) -> Launched:
    """Run a launch, or only the programs with given linear ids (ascending). `seed`: of all orders that are left open.

    With `skips_floats`, floating-point data is neither loaded nor computed: addresses, masks and loops remain, which
    are cheap at any size. If addresses depend on such data, the launch ends with a finding of kind `undefined`. With
    `surveys`, branches and loops that depend on it and store nothing are skipped too, so that all stores are known;
    only what loads nothing either with `heeds_loads`, or, where it is None, after a store.

    Programs that wait for each other run in order; with `shuffled` in a random order, which ends with Stuck if one
    waits for a later one. Raises Unsupported, IRError, OutOfTime. `deadline` refers to time.monotonic.
    """
    traits = traits or traits_of(module)
    shuffled = shuffled and traits.waits
    machine = Machine(
        module, memory, grid, deadline, observer, reverse, seed, learns=traits.in_order or traits.waits,
        impatient=shuffled, skips_floats=skips_floats, surveys=surveys, heeds_loads=heeds_loads,
    )  # fmt: skip
    arguments = bind(module.entry, args)
    uses = {
        use: buffers_of(module.entry, args, reach, memory.buffers)
        for use, reach in (("loads", traits.loaded), ("indexes", traits.indexed), ("stores", traits.stored))
    }
    for number, buffer in enumerate(memory.buffers):
        own = frozenset(use for use, numbers in uses.items() if number in numbers)
        if memory.strict:
            buffer.begin_launch({"loads", "stores"} <= own, own)
        else:
            buffer.begin_launch(False)
    ids = torch.arange(math.prod(grid)) if programs is None else programs
    if memory.strict and not skips_floats and (shuffled or (traits.updates and not traits.waits)):
        chunks = _turns(ids, traits, seed, reverse)
    else:
        chunks = _chunks(ids, traits, seed, reverse, skips_floats)
    for chunk in chunks:
        try:
            ended(machine.call(module.entry, arguments, chunk))
            if machine.running is not None:
                machine.running.now.finish()
                machine.running = None
        except MemoryFault as fault:
            return Launched(_finding(fault, grid))
    return Launched(None, tuple(machine.conflicts[:64]))


def chunk_size(traits: Traits) -> int:
    """Number of programs that run at once."""
    return 1 if traits.waits or traits.alone else _fitting(traits, CHUNK_ELEMENTS)


def _fitting(traits: Traits, elements: int) -> int:
    return max(1, min(MAX_CHUNK, elements // max(1, traits.largest)))


def _chunks(ids: torch.Tensor, traits: Traits, seed: int, reverse: bool, skips_floats: bool) -> Iterable[torch.Tensor]:
    size = _fitting(traits, SURVEYED_ELEMENTS) if skips_floats and not traits.waits else chunk_size(traits)
    chunks = list(torch.split(ids, size))
    if traits.in_order or traits.waits:  # a program waits for one with a smaller id
        return chunks[::-1] if reverse and not traits.waits else chunks
    order = torch.randperm(len(chunks), generator=torch.Generator().manual_seed(seed)).tolist()
    return [chunks[n] for n in (order[::-1] if reverse else order)]


def _turns(ids: torch.Tensor, traits: Traits, seed: int, reverse: bool) -> Iterable[torch.Tensor]:
    """Random chunks: half of all programs, then half of the rest, and so on; single programs if they wait for each
    other.

    Programs of a chunk run concurrently, so a program sees complete results of another only if atomic operations ensure
    it. A kernel that assumes results without waiting for them fails here with high probability.
    """
    drawn = ids[torch.randperm(ids.numel(), generator=torch.Generator().manual_seed(seed))]
    most, chunks = chunk_size(traits), []
    while drawn.numel():
        count = min(most, -(-drawn.numel() // 2))
        chunks.append(drawn[:count].sort().values)
        drawn = drawn[count:]
    return chunks[::-1] if reverse else chunks


def buffers_of(entry: Function, args: Sequence[Arg], reach: Reach, buffers: Sequence[DeviceBuffer] = ()) -> set[int]:
    """Numbers of the buffers behind some parameters of the IR function, and of those that addresses in them are in."""
    owners = _owners(entry, args)
    direct, tables = (
        {arg.buffer for n in positions if not isinstance(arg := args[owners[n]], Scalar)}
        for positions in (reach.arguments, reach.tables)
    )
    addressed = {number: buffer.targets for number, buffer in enumerate(buffers)}
    return direct | closure({target for table in tables for target in addressed.get(table, ())}, addressed)


def _owners(entry: Function, args: Sequence[Arg]) -> list[int]:
    """For each parameter of the IR function the argument that it comes from: a descriptor has several parameters."""
    owners: list[int] = []
    for position, arg in enumerate(args):
        owners += [position] * (1 + 2 * len(arg.shape) if isinstance(arg, Descriptor) else 1)
    if len(owners) != len(entry.arguments):
        raise IRError(f"the launch passes {len(owners)} values where the kernel takes {len(entry.arguments)}")
    return owners


def bind(entry: Function, args: Sequence[Arg]) -> list[Lanes]:
    """Arguments of a launch as values of the IR function's parameters. Raises IRError if they do not fit."""
    _owners(entry, args)
    parameters = iter(entry.arguments)
    bound: list[Lanes] = []
    for arg in args:
        parameter = next(parameters)
        if isinstance(arg, Pointer):
            _expect(parameter, "ptr")
            bound.append(Lanes(parameter.type, sum_=Sum(DeviceMemory.address(arg.buffer, arg.offset))))
        elif isinstance(arg, Descriptor):
            _expect(parameter, "desc")
            bound += _descriptor(parameter, arg, [next(parameters) for _ in range(2 * len(arg.shape))])
        else:
            bound.append(_scalar(parameter, arg))
    return bound


def _expect(parameter: IRValue, element: str) -> None:
    if parameter.type.element != element or parameter.type.shape is not None:
        raise IRError(f"the launch passes a {element} where the kernel takes {parameter.type}")


def _descriptor(parameter: IRValue, arg: Descriptor, rest: Sequence[IRValue]) -> list[Lanes]:
    numbers = [*arg.shape, *arg.strides]
    lanes = [Lanes(value.type, sum_=Sum(number)) for value, number in zip(rest, numbers, strict=True)]
    rank = len(arg.shape)
    pointee = parameter.type.pointee
    if pointee is None or pointee.shape != tuple(arg.block) or pointee.item_bytes != ITEM_BYTES[arg.dtype]:
        raise IRError(f"a descriptor of blocks {arg.block} of {arg.dtype} where the kernel takes {parameter.type}")
    if arg.round_tf32 and pointee.element != "f32":
        raise IRError(f"a descriptor that rounds to TF32 where the kernel takes {parameter.type}")
    base = Lanes(Type("ptr", None, Type(pointee.element)), sum_=Sum(DeviceMemory.address(arg.buffer, arg.offset)))
    sizes, strides = ([Lanes(Type("i64"), sum_=Sum(n)) for n in values] for values in (arg.shape, arg.strides))
    descriptor = DescriptorLanes(
        parameter.type, base, sizes, strides, zeros=arg.padding == "zero", round_tf32=arg.round_tf32
    )
    return [descriptor, *lanes[:rank], *lanes[rank:]]


def _scalar(parameter: IRValue, arg: Scalar) -> Lanes:
    type_ = parameter.type
    if type_.shape is not None or not (type_.is_integer or type_.is_float):
        raise IRError(f"the launch passes a number where the kernel takes {type_}")
    if type_.element == "i1":
        return Lanes(type_, torch.tensor([bool(arg.value)]))
    if type_.is_integer:
        value, half = int(arg.value) % (1 << type_.bits), 1 << (type_.bits - 1)
        return Lanes(type_, sum_=Sum(value - 2 * half if value >= half else value))
    return Lanes(type_, torch.tensor([float(arg.value)], dtype=torch.float64).to(type_.dtype))


def _finding(fault: MemoryFault, grid: tuple[int, int, int]) -> ExecutionFinding:
    operation: Operation | None = getattr(fault, "operation", None)
    place = None
    if fault.program is not None:
        x, rest = fault.program % grid[0], fault.program // grid[0]
        place = (x, rest % grid[1], rest // grid[1] % grid[2])  # calls of elements have numbers beyond
    return ExecutionFinding(
        fault.kind,
        str(fault),
        place,
        operation.name if operation else "",
        operation.ordinal if operation else 0,
        operation.line if operation else 0,
    )
