"""What a kernel tells the compiler about its own values: tl.multiple_of, tl.max_contiguous, tl.max_constancy.

The compiler believes it and turns lanes side by side into one access of up to 16 bytes: the first lane's address and
mask then stand for all of them. A promise that does not hold is no fault by itself, since published kernels make some
about lanes that they never use. So a value for which it does not hold goes on together with what the compiler takes it
for (`Lanes.promised`). At an access, lanes that such a vector would treat otherwise than the kernel says are *torn*:
they load what is undefined, and must not store.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.parse import Operation
from evo_kernel.fitness.ir.types import Type

VECTOR_BYTES = 16
_NAMES = ("tt.contiguity", "tt.constancy", "tt.divisibility")
_KNOWN = {
    "tt.addptr", "tt.bitcast", "tt.broadcast", "tt.cat", "tt.expand_dims", "tt.int_to_ptr", "tt.join", "tt.ptr_to_int",
    "tt.reshape", "tt.splat", "tt.split", "tt.trans", "tt.unsplat", "ttg.convert_layout",
}  # fmt: skip


def follows(operation: Operation) -> bool:
    """The compiler carries what it believes of operands through this operation."""
    return operation.name.startswith("arith.") or operation.name in _KNOWN


def made_by(operation: Operation) -> bool:
    """The kernel promises something about the operation's result."""
    return bool(operation.attributes) and any(name in operation.attributes for name in _NAMES)


def believed(operation: Operation, value: Lanes) -> Lanes:
    """The value, with what the compiler takes it for where that differs."""
    type_ = value.type
    if not (type_.is_integer or type_.element == "ptr") or type_.element == "i1":
        return value
    before = value if value.promised is None else value.promised
    data = before.data.long()
    promises = [_numbers(operation, name, max(1, type_.rank)) for name in _NAMES]
    if type_.rank == 0:
        data = data - data % promises[2][0]
    for axis, (contiguity, constancy, divisor) in enumerate(zip(*promises, strict=True)):
        if axis < type_.rank:
            data = _along(data, axis + 1, type_, contiguity, constancy, divisor)
    if torch.equal(*torch.broadcast_tensors(data, before.data.long())):
        return value
    return value.taken_for(Lanes(type_, data.to(type_.dtype), undefined=value.undefined))


def _numbers(operation: Operation, name: str, count: int) -> list[int]:
    """What is promised for each axis; 1, which says nothing, where nothing is."""
    text = operation.attributes.get(name, "").split(":")[0]
    found = [max(1, min(int(number), 1 << 30)) for number in re.findall(r"\d{1,12}", text)]
    return (found * count if len(found) == 1 else [*found, *[1] * count])[:count]


def _along(data: torch.Tensor, axis: int, type_: Type, contiguity: int, constancy: int, divisor: int) -> torch.Tensor:
    """Data as promised along an axis: in groups of lanes, the first of which tells the others, and is a multiple."""
    size = (type_.shape or ())[axis - 1]
    step = type_.pointee.item_bytes if type_.element == "ptr" and type_.pointee else 1
    contiguity, constancy = _power_of_two(contiguity, size), _power_of_two(constancy, size)
    if max(contiguity, constancy, divisor) == 1:
        return data
    for group, stride in ((contiguity, step), (constancy, 0)):
        if group > 1:
            data = (_groups(data, axis, size, group)[..., :1] + torch.arange(group) * stride).flatten(-2)
            data = data.movedim(-1, axis)
    if divisor > 1:
        grouped = _groups(data, axis, size, contiguity if contiguity > 1 else _contiguity(data, axis, size, step))
        data = (grouped - grouped[..., :1] % divisor).flatten(-2).movedim(-1, axis)
    return data


def _power_of_two(number: int, most: int) -> int:
    return 1 << (min(number, most).bit_length() - 1)


def _groups(data: torch.Tensor, axis: int, size: int, group: int) -> torch.Tensor:
    """Groups of lanes along an axis, as the last axis. `size`: of the axis, which data may leave at 1."""
    shape = [size if n == axis else length for n, length in enumerate(data.shape)]
    return data.expand(shape).movedim(axis, -1).unflatten(-1, (-1, group))


def _contiguity(data: torch.Tensor, axis: int, size: int, step: int) -> int:
    """Lanes that are side by side in every group: at least what the compiler can know."""
    group = size & -size
    while group > 1:
        grouped = _groups(data, axis, size, group)
        if bool((grouped == grouped[..., :1] + torch.arange(group) * step).all()):
            break
        group //= 2
    return group


def torn(pointer: Lanes, mask: Lanes | None, item: int, shape: Sequence[int]) -> torch.Tensor | None:
    """Lanes that a vector would access otherwise than the kernel says; None where there are none.

    `shape`: of all lanes, programs first; `item`: bytes of an element.
    """
    if pointer.promised is None and (mask is None or mask.promised is None):
        return None
    on = torch.ones(1, dtype=torch.bool).expand(tuple(shape)) if mask is None else mask.data.expand(tuple(shape))
    taken_on = on if mask is None or mask.promised is None else mask.promised.data.expand(tuple(shape))
    at = pointer.data.expand(tuple(shape))
    taken_at = at if pointer.promised is None else pointer.promised.data.expand(tuple(shape))
    found = None
    for axis in range(1, len(shape)):
        width = _width(taken_at, taken_on, axis, shape[axis], item)
        if width == 1:
            continue
        lanes, active = (_groups(data, axis, shape[axis], width) for data in (at, on))
        first, leads = lanes[..., :1], active[..., :1]
        elsewhere = (lanes != first + torch.arange(width) * item) | (first % (width * item) != 0)
        wrong = torch.where(leads, elsewhere | ~active, active).flatten(-2).movedim(-1, axis)
        found = wrong if found is None else found | wrong
    return found if found is not None and bool(found.any()) else None


def _width(at: torch.Tensor, on: torch.Tensor, axis: int, size: int, item: int) -> int:
    """The most lanes along an axis that the compiler may take for one vector: aligned, side by side, on or off."""
    width = VECTOR_BYTES // item
    while width > 1:
        if size % width == 0:
            lanes, active = (_groups(data, axis, size, width) for data in (at, on))
            first = lanes[..., :1]
            aligned = (first % (width * item) == 0).all() and (lanes == first + torch.arange(width) * item).all()
            if bool(aligned) and bool((active == active[..., :1]).all()):
                return width
        width //= 2
    return 1
