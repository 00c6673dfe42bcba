"""Handlers of Gluon's operations: shared memory, barriers, asynchronous copies and products, groups of warps.

Layouts say where elements lie, not what they are: they are not represented. What is asynchronous happens as late as
the program allows, in an order that is drawn: a copy when its barrier or group is waited for, a product when it is
waited for, a store then or when it begins. Until a copy has arrived its place is undefined, and so is a product that
was not waited for. What a product or a store reads from shared memory is undefined where it changes after it was
begun. A program that relies on less than it waits for is wrong here, as it may be on a GPU.

Groups of warps run one at a time and change places where they wait for barriers. If all of them wait, the program would
hang. Without floating-point data nothing waits: groups run one after the other, for all
programs at once, and whatever is read from shared memory is undefined.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import torch

from evo_kernel.fitness.ir.access_checks import require_defined_access
from evo_kernel.fitness.ir.descriptors import block_of, described, used_descriptor
from evo_kernel.fitness.ir.device_functions import tf32
from evo_kernel.fitness.ir.engine import Frame, Machine, Unsupported, ended, handles, split_rows
from evo_kernel.fitness.ir.lanes import Lanes, any_marked, nothing, zeros
from evo_kernel.fitness.ir.loads import load
from evo_kernel.fitness.ir.memory import RAW_DTYPES, MemoryFault
from evo_kernel.fitness.ir.module import IRValue, Operation
from evo_kernel.fitness.ir.reductions import product_of, require_fitting_product
from evo_kernel.fitness.ir.running_program import Barrier, PendingProduct, RunningProgram, Steps
from evo_kernel.fitness.ir.stores import store
from evo_kernel.fitness.ir.types import IRError, Type

MOST_BYTES = 228 << 10
"""Of shared memory that a program may have (CUDA C++ Programming Guide, compute capability 9.0)."""
COPY_ALIGNMENT = 128
"""Bytes of which the place of a block in shared memory must be a multiple (PTX ISA, cp.async.bulk.tensor)."""
PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
"""Of `inputPrecision` as a number (tt::InputPrecision)."""


class SharedMemory(Lanes):
    """A tensor in shared memory, or a part of one: views of its elements and of what is undefined among them."""

    __slots__ = ("marks_", "parts", "view")

    def __init__(self, type_: Type, view: torch.Tensor, marks: torch.Tensor) -> None:
        super().__init__(type_, view.unsqueeze(0))
        self.view, self.marks_ = view, marks
        self.parts: dict[tuple[int | Operation, Type], SharedMemory] = {}  # along the first axis, and views

    def rows(self, index: torch.Tensor) -> SharedMemory:
        """The same: one program has it, or nothing is known of it."""
        return self

    def read(self, type_: Type) -> Lanes:
        """What it holds now."""
        return Lanes(type_, self.view.clone().unsqueeze(0), undefined=_marks_of(self.marks_))

    def read_later(self, type_: Type) -> Callable[[], Lanes]:
        """What is read from now until the result is called: undefined where it changes meanwhile."""
        begun = self.read(type_)
        bits = RAW_DTYPES[begun.data.element_size()]

        def read() -> Lanes:
            now, before = self.view.view(bits), begun.data[0].view(bits)
            changed = None if torch.equal(now, before) else (now != before).unsqueeze(0)
            return Lanes(type_, begun.data, undefined=any_marked(begun.undefined, _marks_of(self.marks_), changed))

        return read

    def write(self, value: Lanes) -> None:
        if tuple(self.view.shape) != value.type.shape:
            raise IRError(f"a tensor {value.type} is written to shared memory of {tuple(self.view.shape)}")
        self.view.copy_(value.full()[0])
        self.marks_.copy_(value.marks((1, *self.view.shape))[0])


def _blank(result: IRValue) -> SharedMemory:
    """Shared memory of which nothing is known, without floating-point data."""
    type_ = _contents(result)
    shape = type_.shape or ()
    return SharedMemory(result.type, _NOUGHT.to(type_.dtype).expand(shape), _MARK.expand(shape))


_NOUGHT, _MARK = torch.zeros(()), torch.ones((), dtype=torch.bool)
_TOKEN = zeros(Type("i1"))  # an order of copies, which stands in the text too


def _running(machine: Machine, frame: Frame) -> RunningProgram:
    if machine.running is not None and machine.running.programs is frame.programs:
        return machine.running
    if frame.programs.numel() != 1:
        raise IRError("shared memory of several programs at once")
    program = int(frame.programs[0])
    if machine.running is None:
        machine.running = RunningProgram(program, machine.seed)
    if machine.running.program != program:
        raise IRError("shared memory of several programs at once")
    machine.running.programs = frame.programs
    return machine.running


def _marks_of(marks: torch.Tensor) -> torch.Tensor | None:
    return marks.clone().unsqueeze(0) if bool(marks.any()) else None


def _shared(value: Lanes) -> SharedMemory:
    if not isinstance(value, SharedMemory):
        raise IRError("an operation of shared memory on what is none")
    return value


def _number(value: Lanes, what: str) -> int:
    if value.scalar is not None:
        return value.scalar
    if value.undefined is not None and bool(value.undefined.any()):
        raise MemoryFault("undefined", f"uses {what} that is undefined")
    return int(value.data.reshape(-1)[0])


def _holds(value: Lanes) -> bool:
    return bool(_number(value, "a predicate"))


@functools.lru_cache(maxsize=256)
def _literal(operation: Operation) -> int:
    """The number that stands among the operands: a count or bytes."""
    found = re.search(r",\s*(\d+)", operation.head)
    if found is None:
        raise IRError(f"{operation.name} without a number")
    return int(found[1])


def _contents(result: IRValue) -> Type:
    if result.type.element != "memdesc" or result.type.pointee is None:
        raise IRError(f"shared memory of type {result.type}")
    return result.type.pointee


# --- shared memory --------------------------------------------------------------------------------------------------


@handles("ttg.local_alloc")
def _alloc(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if machine.skips_floats:
        return [_blank(operation.results[0])]
    _running(machine, frame)
    type_ = _contents(operation.results[0])
    shape = type_.shape or ()
    if type_.elements * type_.item_bytes > MOST_BYTES:
        raise IRError(f"{type_} is more than the shared memory of a program")
    made = SharedMemory(
        operation.results[0].type, torch.zeros(shape, dtype=type_.dtype), torch.ones(shape, dtype=torch.bool)
    )
    if operands:
        made.write(operands[0])
    return [made]


@handles("ttg.local_dealloc", "ttng.fence_async_shared", "ttg.barrier", "gpu.barrier")
def _nothing(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Barriers within a group of warps, and fences, which the compiler inserts where they lack."""
    return []


@handles("ttg.local_load")
def _local_load(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    return [nothing(type_) if machine.skips_floats else _shared(operands[0]).read(type_)]


@handles("ttg.local_store")
def _local_store(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if not machine.skips_floats:
        _shared(operands[1]).write(operands[0])
    return []


@handles("ttg.local_gather")
def _gather(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    if machine.skips_floats:
        return [nothing(type_)]
    place = _shared(operands[0])
    axis, index = _places(operation, place, operands[1])
    marks = place.marks_.gather(axis, index)
    data = place.view.view(RAW_DTYPES[type_.item_bytes]).gather(axis, index).view(type_.dtype)
    return [Lanes(type_, data.unsqueeze(0), undefined=_marks_of(marks))]


@handles("ttg.local_scatter")
def _scatter(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if machine.skips_floats:
        return []
    place, (axis, index) = _shared(operands[0]), _places(operation, _shared(operands[0]), operands[1])
    bits = place.view.view(RAW_DTYPES[place.view.element_size()])
    value = operands[2].full()[0].contiguous().view(bits.dtype)
    bits.scatter_(axis, index, value)
    if bool((bits.gather(axis, index) != value).any()):
        raise MemoryFault("race", "stores different values to one element of shared memory with one instruction")
    marks = operands[2].marks((1, *index.shape))[0]
    place.marks_.scatter_(axis, index, False)
    place.marks_ |= torch.zeros_like(place.marks_, dtype=torch.int32).scatter_add_(axis, index, marks.int()) > 0
    return []


def _places(operation: Operation, place: SharedMemory, index: Lanes) -> tuple[int, torch.Tensor]:
    """The axis along which elements of shared memory are named, and their numbers."""
    axis, numbers, shape = operation.integer("axis"), index.full()[0].long(), place.view.shape
    if not 0 <= axis < len(shape) or numbers.dim() != len(shape):
        raise IRError(f"{operation.name} along axis {axis}")
    if any(size > shape[a] for a, size in enumerate(numbers.shape) if a != axis):
        raise IRError(f"{operation.name} of {tuple(numbers.shape)} from {tuple(shape)}")
    if index.undefined is not None and bool(index.undefined.any()):
        raise MemoryFault("undefined", "names elements of shared memory by undefined numbers")
    if int(numbers.min()) < 0 or int(numbers.max()) >= shape[axis]:
        raise MemoryFault("out_of_bounds", f"names elements beyond the {shape[axis]} of shared memory")
    return axis, numbers


@handles("ttg.memdesc_reinterpret")
def _reinterpret(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """The same bits as other types of the same size: what else it can do depends on layouts."""
    whole, (before, after) = _shared(operands[0]), (operation.types[0], operation.results[0].type)
    old, new = before.pointee or before, _contents(operation.results[0])
    if (old.shape, old.item_bytes, old.encoding) != (new.shape, new.item_bytes, new.encoding) or not old.encoding:
        raise Unsupported(f"{operation.name} of {before} as {after}")
    return [SharedMemory(after, whole.view.view(new.dtype), whole.marks_)]


@handles("ttg.memdesc_index")
def _index(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    whole, slots, type_ = _shared(operands[0]), operands[1], operation.results[0].type
    place = slots.scalar
    if place is not None and (part := whole.parts.get((place, type_))) is not None:
        return [part]
    if slots.undefined is not None and bool(slots.undefined.any()):
        if machine.skips_floats:
            return [_blank(operation.results[0])]
        raise MemoryFault("undefined", "uses a slot of shared memory whose number is undefined")
    if slots.sum.low < 0 or slots.sum.high >= whole.view.shape[0]:
        raise MemoryFault("out_of_bounds", f"uses a slot beyond the {whole.view.shape[0]} of shared memory")
    if machine.skips_floats:
        if place is not None:
            whole.parts[place, type_] = _blank(operation.results[0])
        return [_blank(operation.results[0])]
    place = int(slots.data.reshape(-1)[0])
    part = whole.parts[place, type_] = SharedMemory(type_, whole.view[place], whole.marks_[place])
    return [part]


@handles("ttg.memdesc_subslice")
def _subslice(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    whole, type_ = _shared(operands[0]), _contents(operation.results[0])
    offsets = [int(text) for text in re.findall(r"\d+", operation.head[operation.head.find("[") :])]
    if len(offsets) != whole.view.dim() or type_.rank != len(offsets):
        raise Unsupported(f"{operation.name} of another rank")
    part = tuple(slice(at, at + size) for at, size in zip(offsets, type_.shape or (), strict=True))
    view = whole.view[part]
    if tuple(view.shape) != type_.shape:
        raise IRError(f"{operation.name} beyond the end")
    return [SharedMemory(operation.results[0].type, view, whole.marks_[part])]


@handles("ttg.memdesc_trans")
def _trans(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    whole, type_ = _shared(operands[0]), operation.results[0].type
    if (view := whole.parts.get((operation, type_))) is not None:
        return [view]
    order = [int(text) for text in re.findall(r"\d+", operation.attributes.get("order", "").partition(":")[2])]
    if sorted(order) != list(range(whole.view.dim())):
        raise IRError(f"{operation.name} without an order of axes")
    view = SharedMemory(type_, whole.view.permute(order), whole.marks_.permute(order))
    whole.parts[operation, type_] = view
    return [view]


@handles("ttg.memdesc_reshape")
def _reshape(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    whole, type_ = _shared(operands[0]), _contents(operation.results[0])
    shape = type_.shape or ()
    if machine.skips_floats:
        return [_blank(operation.results[0])]
    try:
        return [SharedMemory(operation.results[0].type, whole.view.view(shape), whole.marks_.view(shape))]
    except RuntimeError as error:
        raise Unsupported(f"{operation.name} of a part that does not lie in one piece") from error


# --- barriers -------------------------------------------------------------------------------------------------------


def _barrier(machine: Machine, frame: Frame, value: Lanes) -> Barrier:
    found = _running(machine, frame).barriers.get(_shared(value).view.data_ptr())
    if found is None or not _shared(value).marks_.all().item():  # or something was stored over it
        raise MemoryFault("undefined", "uses a barrier that was not initialised")
    return found


@handles("ttng.init_barrier")
def _init(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if not machine.skips_floats:
        barriers, place = _running(machine, frame).barriers, _shared(operands[0])
        if (before := barriers.get(place.view.data_ptr())) is not None and before.copies:
            raise MemoryFault("race", "initialises a barrier to which copies are on their way")
        barriers[place.view.data_ptr()] = Barrier(_literal(operation))
        place.marks_.fill_(True)
    return []


@handles("ttng.inval_barrier")
def _invalidate(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if not machine.skips_floats:
        _running(machine, frame).barriers.pop(_shared(operands[0]).view.data_ptr(), None)
    return []


@handles("ttng.barrier_expect")
def _expect(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if not machine.skips_floats and _holds(operands[1]):
        barrier = _barrier(machine, frame, operands[0])
        barrier.bytes += _literal(operation)
        barrier.arrive(1, _running(machine, frame).now.latencies)
    return []


@handles("ttng.arrive_barrier")
def _arrive(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Steps:
    if not machine.skips_floats and (len(operands) < 2 or _holds(operands[1])):
        running = _running(machine, frame)
        _barrier(machine, frame, operands[0]).arrive(_literal(operation), running.now.latencies)
        yield from running.pause()
    return []


@handles("ttng.wait_barrier")
def _wait(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> Steps:
    if machine.skips_floats or (len(operands) > 2 and operands[2].type.element == "i1" and not _holds(operands[2])):
        return []
    running, barrier = _running(machine, frame), _barrier(machine, frame, operands[0])
    parity = _number(operands[1], "a phase")
    machine.check_time()
    yield from running.pause()
    yield from running.wait(lambda arrives: barrier.is_over(parity & 1, running.draw, arrives))
    running.now.latencies = max(running.now.latencies, barrier.ended)
    if machine.observer is not None:
        machine.observer.waited(running.program, running.now.latencies)
    return []


# --- copies ---------------------------------------------------------------------------------------------------------


@handles("ttng.async_tma_copy_global_to_local")
def _copy_in(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """A block of global memory into shared memory; its bytes arrive at a barrier."""
    if operation.words or len(operands) < 4:
        raise Unsupported(f"{operation.name} {' '.join(operation.words)}")
    descriptor, *indices, place, barrier, predicate = operands
    place, block = _of_block(place), block_of(descriptor.type)
    if _long_axes(block.shape or ()) != _long_axes(place.view.shape):  # else layouts decide what lies where
        raise Unsupported(f"{operation.name} of {block.shape} into {tuple(place.view.shape)}")
    if machine.skips_floats:
        return _copied_in_part(machine, frame, operation, operands)
    if not _holds(predicate):
        return []
    running, awaited = _running(machine, frame), _barrier(machine, frame, barrier)
    known = used_descriptor(machine, frame, descriptor, indices)
    fill = torch.full((1,) * (block.rank + 1), 0.0 if known.zeros else torch.nan).to(block.dtype)
    fill = Lanes(Type(block.element, block.shape), fill)
    rounds = known.round_tf32 and block.element == "f32"
    arrives = _on_its_way(machine, frame, operation, *described(known, indices), fill, place, rounds)
    awaited.copies.append((arrives, running.now.latencies + 1))
    return []


def _on_its_way(
    machine: Machine, frame: Frame, operation: Operation, pointer: Lanes, mask: Lanes | None, fill: Lanes,
    place: SharedMemory, rounds: bool = False,
) -> Callable[[], int]:  # fmt: skip
    """Begin a copy into shared memory, of `fill` where the mask is off. What makes it arrive returns its bytes."""
    running, type_, shape = _running(machine, frame), fill.type, fill.type.shape or ()
    place.marks_.fill_(True)
    running.now.copies = True
    whole = mask is None or mask.boolean()
    if (observer := machine.observer) is not None and whole is not False:  # not when it arrives
        observer.access(operation, pointer, None if whole else mask, frame.programs, type_.item_bytes, shape)

    def arrives() -> int:
        if not bool(place.marks_.all()):
            raise MemoryFault("race", "writes to shared memory into which a copy is on its way", running.program)
        machine.observer, machine.copies_blocks = None, operation.name.startswith("ttng.")
        loaded = load(machine, frame, operation, pointer, mask, fill, type_)
        machine.observer, machine.copies_blocks = observer, False
        data = tf32(loaded.data) if rounds else loaded.data
        place.view.copy_(data.expand(1, *shape)[0].reshape(place.view.shape))
        if loaded.undefined is None:
            place.marks_.fill_(False)
        else:
            place.marks_.copy_(loaded.marks((1, *shape))[0].reshape(place.view.shape))
        return type_.elements * type_.item_bytes

    return arrives


@handles("ttg.async_copy_global_to_local")
def _copy_by_threads(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Elements of global memory into shared memory: there when their group was waited for. Zeros where the mask is
    off (PTX ISA, cp.async: `src-size`)."""
    pointer, place, *rest = operands
    element = pointer.type.pointee
    if element is None or "other" in operation.words or "contiguity" in operation.attributes or len(rest) > 1:
        raise Unsupported(f"{operation.name} {' '.join(operation.words)}")
    fill, mask = zeros(Type(element.element, pointer.type.shape)), rest[0] if rest else None
    require_defined_access(machine, pointer, mask, "copies")
    if machine.skips_floats:
        load(machine, frame, operation, pointer, mask, fill, fill.type)
    else:
        place = _shared(place)
        if tuple(place.view.shape) != fill.type.shape or place.view.dtype is not fill.type.dtype:
            raise IRError(f"{operation.name} of {fill.type} into {tuple(place.view.shape)}")
        group = _running(machine, frame).now
        arrives = _on_its_way(machine, frame, operation, pointer, mask, fill, place)
        group.begun.append((arrives, group.latencies + 1))
    return [nothing(fill.type)]


@handles("ttg.async_commit_group")
def _commit(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if not machine.skips_floats:
        _running(machine, frame).now.commit_copies()
    return [_TOKEN]


@handles("ttg.async_wait")
def _wait_copies(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if not machine.skips_floats:
        running = _running(machine, frame)
        running.now.finish_copies(operation.integer("num"))
        if machine.observer is not None:
            machine.observer.waited(running.program, running.now.latencies)
    return [_TOKEN]


def _of_block(value: Lanes) -> SharedMemory:
    """Shared memory that a block is copied to or from."""
    place = _shared(value)
    if place.view.storage_offset() * place.view.element_size() % COPY_ALIGNMENT:
        raise MemoryFault(
            "misaligned", f"copies a block whose place in shared memory is no multiple of {COPY_ALIGNMENT} bytes"
        )
    return place


def _long_axes(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size > 1]


def _copied_in_part(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Look at the addresses of a copy, for the programs that make it."""
    descriptor, *indices, _, _, predicate = operands
    if (all_do := predicate.scalar) is None:  # only some
        yes, _ = split_rows(predicate, frame.programs.numel())
        frame = Frame(frame.programs[yes])
        descriptor, indices = descriptor.rows(yes), [index.rows(yes) for index in indices]
    if all_do != 0 and frame.programs.numel():
        known = used_descriptor(machine, frame, descriptor, indices)
        block = block_of(descriptor.type)
        fill = Lanes(block, torch.zeros((1,) * (block.rank + 1)).to(block.dtype))
        load(machine, frame, operation, *described(known, indices), fill, Type(block.element, block.shape))
    return []


@handles("ttng.async_tma_copy_local_to_global")
def _copy_out(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """A block of shared memory into global memory."""
    descriptor, *indices, place = operands
    place, block = _of_block(place), block_of(descriptor.type)
    pointer, mask = described(used_descriptor(machine, frame, descriptor, indices), indices)
    type_ = Type(block.element, block.shape)

    if machine.skips_floats:
        store(machine, frame, operation, pointer, nothing(type_), mask)
        return []

    if tuple(place.view.shape) != (block.shape or ()):
        raise IRError(f"{operation.name} of {tuple(place.view.shape)} as {block.shape}")
    running, read = _running(machine, frame), place.read_later(type_)
    if (owner := machine.memory.buffer_at(pointer.sum.low)) is not None:
        owner[0].by_copies = True
    if early := running.draw.random() < 0.5:
        store(machine, frame, operation, pointer, read(), mask)

    def is_read() -> Callable[[], None]:
        value = read()
        if early and value.undefined is None:
            return lambda: None
        return lambda: store(machine, frame, operation, pointer, value, mask)

    running.now.stores.append(is_read)
    return []


@handles("ttng.async_tma_store_wait")
def _wait_stores(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if not machine.skips_floats:
        group = _running(machine, frame).now
        group.finish_stores(operation.integer("pendings", 0), operation.flag("read_only"))
    return []


# --- products -------------------------------------------------------------------------------------------------------


@handles("ttng.warp_group_dot")
def _dot(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """A tensor-core product, of a left operand in shared memory or registers."""
    a, b, c, *rest = operands
    type_ = operation.results[0].type
    require_fitting_product(machine, type_)
    if machine.skips_floats:
        return [nothing(type_)]
    adds = not rest or _holds(rest[0])
    number = operation.integer("inputPrecision", 0)
    if not 0 <= number < len(PRECISIONS):
        raise IRError(f"{operation.name} with a precision {number}")
    precision = PRECISIONS[number]
    group = _running(machine, frame).now
    reads = [
        one.read_later(one.type.pointee) if isinstance(one, SharedMemory) and one.type.pointee else lambda one=one: one
        for one in (a, b)
    ]

    def made() -> Lanes:
        left, right = (read() for read in reads)
        whole = c.finish() if isinstance(c, PendingProduct) else c
        if not adds:
            whole = Lanes(type_, torch.zeros((1,) * (type_.rank + 1), dtype=type_.dtype))
        return product_of(left, right, whole, precision, type_)

    product = PendingProduct(type_, made)
    group.products.append(product)
    if operation.flag("isAsync"):
        return [product]
    group.finish_products(0)
    return [product.finish()]


@handles("ttng.warp_group_dot_wait")
def _wait_products(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    if machine.skips_floats:
        return list(operands)
    _running(machine, frame).now.finish_products(operation.integer("pendings", 0))
    return [one.made if isinstance(one, PendingProduct) and one.made is not None else one for one in operands]


# --- groups of warps ------------------------------------------------------------------------------------------------


@handles("ttg.warp_specialize")
def _specialize(
    machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]
) -> Sequence[Lanes] | Steps:
    """The first region runs in the group of warps that is there, each other one in a group of its own."""
    own, *others = operation.regions

    def work(number: int) -> Steps:
        inner = Frame(frame.programs)
        inner.bind(others[number].arguments, operands)
        return machine.block(inner, others[number].operations)

    works = [work(number) for number in range(len(others))]
    if machine.skips_floats:
        for one in works:
            ended(one)
        return machine.region(frame, own)
    return _running(machine, frame).beside(works, machine.region(frame, own))
