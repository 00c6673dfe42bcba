"""Handlers of operations that create and move elements without computing: ranges, splats, views, joins, gathers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch

from evo_kernel.fitness.ir.engine import Frame, Machine, handles
from evo_kernel.fitness.ir.lanes import Lanes, Sum, Term, any_undefined, sum_of, taken
from evo_kernel.fitness.ir.memory import MemoryFault
from evo_kernel.fitness.ir.module import Operation
from evo_kernel.fitness.ir.types import IRError, Type

_AXES = {"x": 0, "y": 1, "z": 2}


@handles("tt.get_program_id")
def _program_id(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    axis = _AXES[operation.words[0]]
    before = 1
    for size in machine.grid[:axis]:
        before *= size
    ids = frame.programs if before == 1 else torch.div(frame.programs, before, rounding_mode="floor")
    return [Lanes(operation.results[0].type, sum_=sum_of(ids % machine.grid[axis]))]


@handles("tt.get_num_programs")
def _program_count(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    return [Lanes(operation.results[0].type, sum_=Sum(machine.grid[_AXES[operation.words[0]]]))]


@handles("tt.make_range")
def _range(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    first, end = operation.integer("start"), operation.integer("end")
    type_ = operation.results[0].type
    if (end - first,) != type_.shape:
        raise IRError(f"tt.make_range of {end - first} elements as {type_}")
    if end - first == 1:
        return [Lanes(type_, sum_=Sum(first))]
    return [Lanes(type_, sum_=Sum(first, (Term(torch.arange(end - first).unsqueeze(0), 0, end - first - 1),)))]


@handles("tt.splat")
def _splat(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    return [operands[0].reshaped(type_, lambda data: data.reshape(data.shape[0], *(1,) * type_.rank))]


@handles("tt.unsplat")
def _unsplat(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    (value,) = operands
    undefined = None if value.undefined is None else value.undefined.reshape(value.undefined.shape[0])
    return [Lanes(operation.results[0].type, value.data.reshape(value.data.shape[0]), undefined=undefined)]


@handles("tt.broadcast", "ttg.convert_layout")
def _broadcast(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    return [operands[0].reshaped(operation.results[0].type, lambda data: data)]


@handles("tt.expand_dims")
def _expand_dims(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    axis = operation.integer("axis") + 1
    return [operands[0].reshaped(operation.results[0].type, lambda data: data.unsqueeze(axis))]


@handles("tt.trans")
def _transpose(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    order = [int(n) + 1 for n in re.findall(r"\d+", operation.attributes["order"].split(":")[-1])]
    return [operands[0].reshaped(operation.results[0].type, lambda data: data.permute(0, *order))]


@handles("tt.reshape")
def _reshape(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    (value,), type_ = operands, operation.results[0].type
    if operation.flag("allow_reorder"):  # which the compiler does for axes of size 1 too, as layouts differ
        return [_reordered(machine, _elementwise_view(value, type_))]
    source, target = value.type.shape or (), type_.shape or ()
    kept = [axis for axis, size in enumerate(source) if size > 1]
    if [source[axis] for axis in kept] != [size for size in target if size > 1]:
        return [_elementwise_view(value, type_)]

    def refit(data: torch.Tensor) -> torch.Tensor:
        sizes = iter(data.shape[axis + 1] for axis in kept)
        return data.reshape(data.shape[0], *(next(sizes) if size > 1 else 1 for size in target))

    return [value.reshaped(type_, refit)]  # only axes of size 1 come and go


def _reordered(machine: Machine, value: Lanes) -> Lanes:
    """Elements in an order that the compiler may choose."""
    if not machine.memory.strict:
        return value
    order = machine.order(value.type.elements)

    def moved(data: torch.Tensor) -> torch.Tensor:
        whole = data.expand(data.shape[0], *(value.type.shape or ()))
        return taken(whole.reshape(data.shape[0], -1), 1, order).reshape(whole.shape)

    return Lanes(value.type, moved(value.data), undefined=None if value.undefined is None else moved(value.undefined))


def _elementwise_view(value: Lanes, type_: Type) -> Lanes:
    undefined, shape = value.undefined, type_.shape or ()
    if undefined is not None:
        undefined = undefined.expand(undefined.shape[0], *(value.type.shape or ())).reshape(-1, *shape)
    if value.data.numel() == 1:
        return Lanes(type_, value.data.reshape((1,) * (type_.rank + 1)), undefined=undefined)
    return Lanes(type_, value.full().reshape(value.data.shape[0], *shape), undefined=undefined)


@handles("tt.join")
def _join(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    shape = np.broadcast_shapes(*(value.extents for value in operands))
    data, undefined = torch.stack([value.data.expand(shape) for value in operands], -1), None
    if any(value.undefined is not None for value in operands):
        undefined = torch.stack([value.marks(shape) for value in operands], -1)
    return [Lanes(operation.results[0].type, data, undefined=undefined)]


@handles("tt.split")
def _split(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    (value,) = operands
    halves = []
    for number, result in enumerate(operation.results):
        data = value.data[..., min(number, value.data.shape[-1] - 1)]
        undefined = value.undefined
        if undefined is not None:
            undefined = undefined[..., min(number, undefined.shape[-1] - 1)]
        halves.append(Lanes(result.type, data, undefined=undefined))
    return halves


@handles("tt.cat")
def _cat(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    programs = max(value.programs for value in operands)
    data = torch.cat([value.full(programs) for value in operands], 1)
    undefined = None
    if any(value.undefined is not None for value in operands):
        undefined = torch.cat([value.marks((programs, *(value.type.shape or ()))) for value in operands], 1)
    return [_reordered(machine, Lanes(operation.results[0].type, data, undefined=undefined))]


@handles("tt.gather")
def _gather(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    source, index = operands
    axis = operation.integer("axis")
    size = (source.type.shape or ())[axis]
    if index.undefined is not None and bool(index.undefined.any()):
        raise MemoryFault("undefined", "gathers by an index that is undefined")
    programs = max(source.programs, index.programs)
    places = index.full(programs).long()
    if bool(((places < 0) | (places >= size)).any()):
        raise MemoryFault("out_of_bounds", f"gathers by an index outside 0..{size - 1}")
    data = source.full(programs)
    raw = data.view(torch.int8) if data.element_size() == 1 else data  # torch cannot gather 8-bit floats
    data = torch.gather(raw, axis + 1, places).view(data.dtype)
    undefined = None
    if source.undefined is not None:
        marks = source.undefined.expand(programs, *(source.type.shape or ()))
        undefined = torch.gather(marks, axis + 1, places)
    return [Lanes(operation.results[0].type, data, undefined=undefined)]


@handles("tt.addptr")
def _add_pointer(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    pointer, offset = operands
    type_ = operation.results[0].type
    pointee = (type_.pointee or Type("i8")).item_bytes
    step = -pointee if offset.type.element == "i1" else pointee  # a true offset is -1: LLVM extends its sign
    total = pointer.sum.plus(offset.sum.times(step))
    return [Lanes(type_, sum_=total, undefined=any_undefined(operands))]


@handles("tt.print", "tt.debug_barrier", "gpu.barrier", "ttg.barrier", "ttg.local_barrier", "llvm.intr.assume",
         "tt.assert", "tt.device_print", "tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents")  # fmt: skip
def _nothing(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Operations without effect here.

    Barriers order the threads of one program, which runs as one; launches run one after another. Hints and messages
    compute nothing; a violated assumption is undefined behaviour.
    """
    if operation.name == "tt.assert" and not bool(operands[0].data.all()):
        raise MemoryFault("assertion", f"fails its device_assert: {' '.join(operation.words)[:200]}")
    if operation.name == "llvm.intr.assume" and machine.memory.strict:
        holds = operands[0]
        if holds.undefined is not None or not bool(holds.data.all()):  # the compiler assumes that it holds
            raise MemoryFault("undefined", "assumes what does not hold")
    return []
