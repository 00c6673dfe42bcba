"""Checks hints to the compiler: tl.multiple_of, tl.max_contiguous, tl.max_constancy.

Because of hints the compiler combines adjacent lanes into one access of up to 16 bytes, which uses the first lane's
address and mask for all of them. A wrong hint alone is not a fault: published kernels have wrong hints on lanes that
they never use. So a value with a wrong hint keeps the value that the compiler assumes beside its own
(`Lanes.promised`). At an access, lanes that a vector access would treat differently are *torn*: they load undefined
values and must not store.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import torch

from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.memory import RAW_DTYPES
from evo_kernel.fitness.ir.module import Operation
from evo_kernel.fitness.ir.types import IRError, Type

VECTOR_BYTES = 16
_NAMES = ("tt.contiguity", "tt.constancy", "tt.divisibility")
_KNOWN = {
    "tt.addptr", "tt.bitcast", "tt.broadcast", "tt.cat", "tt.expand_dims", "tt.int_to_ptr", "tt.join", "tt.ptr_to_int",
    "tt.reshape", "tt.splat", "tt.split", "tt.trans", "tt.unsplat", "ttg.convert_layout",
}  # fmt: skip
_WRAPS = "a promise about numbers that wrap around"
_BOTH = "a promise that numbers are contiguous, and that they are equal"
_OF_FLOATS = re.compile(r"arith\.(\w+f|fpto[su]i)")


def follows(operation: Operation) -> bool:
    """Whether the compiler derives properties of this operation's result from its operands."""
    arithmetic = operation.name.startswith("arith.") and not _OF_FLOATS.fullmatch(operation.name)
    return arithmetic or operation.name in _KNOWN


def made_by(operation: Operation) -> bool:
    """Whether the operation's result has a hint."""
    return bool(operation.attributes) and any(name in operation.attributes for name in _NAMES)


def believed(operation: Operation, value: Lanes) -> Lanes:
    """The value, with the value that the compiler assumes if that differs: of floats their bits, which a bitcast may
    turn into an address or a mask. Raises IRError for what no value is, such as contiguous booleans."""
    type_ = value.type
    if not (type_.is_integer or type_.is_float or type_.element == "ptr"):
        return value
    before = value if value.promised is None else value.promised
    bits = before.data.view(RAW_DTYPES[type_.item_bytes]) if type_.is_float else before.data
    data = bits.long()
    promises = [_numbers(operation, name, max(1, type_.rank)) for name in _NAMES]
    if type_.element == "i1" and max(promises[0]) > 1:
        raise IRError("a promise that booleans are contiguous")
    if type_.rank == 0:
        data = data - data % promises[2][0]
    for axis, (contiguity, constancy, divisor) in enumerate(zip(*promises, strict=True)):
        if axis < type_.rank:
            already, data = data, _along(data, axis + 1, type_, contiguity, constancy, divisor)
            anew = value.promised is not None and not torch.equal(*torch.broadcast_tensors(already, data))
            if constancy > 1 and (contiguity > 1 or anew):
                raise IRError(_BOTH)
            if contiguity > 1 and anew and _constant(already, axis + 1) and not _constant(value.data, axis + 1):
                raise IRError(_BOTH)
    if torch.equal(*torch.broadcast_tensors(data, bits.long())):
        return value
    narrow = data.to(bits.dtype)
    if not torch.equal(narrow.long(), data):
        raise IRError(_WRAPS)
    return value.taken_for(Lanes(type_, narrow.view(type_.dtype), undefined=value.undefined))


def refuse_wraps(operation: Operation, operands: Sequence[Lanes], result: Lanes) -> None:
    """Raise IRError if what is promised to be contiguous wraps around between two lanes: not for the compiler."""
    if operation.name not in ("arith.addi", "arith.subi", "arith.trunci") or result.type.bits == 64:
        return
    for axis in range(1, result.data.dim()):
        steps = [value.data.long().diff(dim=axis) for value in (*operands, result)]
        wraps = steps[-1].abs() >= 1 << (result.type.bits - 1)
        if any(bool((wraps & (step.abs() == 1)).any()) for step in steps[:-1] if step.shape[axis] > 0):
            raise IRError(_WRAPS)


def _numbers(operation: Operation, name: str, count: int) -> list[int]:
    """The hinted number for each axis; 1, which has no effect, by default."""
    text = operation.attributes.get(name, "").split(":")[0]
    numbers = [max(1, min(int(number), 1 << 30)) for number in re.findall(r"\d{1,12}", text)]
    return (numbers * count if len(numbers) == 1 else [*numbers, *[1] * count])[:count]


def _along(data: torch.Tensor, axis: int, type_: Type, contiguity: int, constancy: int, divisor: int) -> torch.Tensor:
    """Data as hinted along an axis: in groups of lanes that follow from the first one, which is a multiple of the
    divisor."""
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


def _constant(data: torch.Tensor, axis: int) -> bool:
    """Whether lanes are equal in pairs along an axis."""
    size = data.shape[axis]
    return size == 1 or torch.equal(*_groups(data, axis, size, 2).unbind(-1))


def _power_of_two(number: int, most: int) -> int:
    return 1 << (min(number, most).bit_length() - 1)


def _groups(data: torch.Tensor, axis: int, size: int, group: int) -> torch.Tensor:
    """Groups of lanes along an axis, as the last axis. `size`: of the axis, which data may leave at 1."""
    shape = [size if n == axis else length for n, length in enumerate(data.shape)]
    return data.expand(shape).movedim(axis, -1).unflatten(-1, (-1, group))


def _contiguity(data: torch.Tensor, axis: int, size: int, step: int) -> int:
    """Length of the groups of contiguous lanes: at least what the compiler can derive."""
    group = size & -size
    while group > 1:
        grouped = _groups(data, axis, size, group)
        if bool((grouped == grouped[..., :1] + torch.arange(group) * step).all()):
            break
        group //= 2
    return group


def torn(pointer: Lanes, mask: Lanes | None, item: int, shape: Sequence[int]) -> torch.Tensor | None:
    """Lanes that a vector access would treat differently; None if there are none.

    `shape`: of all lanes, programs first; `item`: bytes of an element.
    """
    if pointer.promised is None and (mask is None or mask.promised is None):
        return None
    on = torch.ones(1, dtype=torch.bool).expand(tuple(shape)) if mask is None else mask.data.expand(tuple(shape))
    taken_on = on if mask is None or mask.promised is None else mask.promised.data.expand(tuple(shape))
    at = pointer.data.expand(tuple(shape))
    taken_at = at if pointer.promised is None else pointer.promised.data.expand(tuple(shape))
    # What is promised to be constant stays contiguous for the compiler where it can see that it is; or vice versa.
    addresses = (at,) if pointer.promised is None else (at, taken_at)
    masks = (on,) if mask is None or mask.promised is None else (on, taken_on)
    pairs = list(itertools.product(addresses, masks))[1:]
    torn_lanes = None
    for axis in range(1, len(shape)):
        width = max(_width(*pair, axis, shape[axis], item) for pair in pairs)
        if width == 1:
            continue
        lanes, active = (_groups(data, axis, shape[axis], width) for data in (at, on))
        first, leads = lanes[..., :1], active[..., :1]
        elsewhere = (lanes != first + torch.arange(width) * item) | (first % (width * item) != 0)
        wrong = torch.where(leads, elsewhere | ~active, active).flatten(-2).movedim(-1, axis)
        torn_lanes = wrong if torn_lanes is None else torn_lanes | wrong
    return torn_lanes if torn_lanes is not None and bool(torn_lanes.any()) else None


def loaded(pointer: Lanes, mask: Lanes | None, value: Lanes) -> Lanes:
    """A loaded value, with the one that the compiler assumes: constant where it takes address and mask for constant."""
    given = [lanes.promised or lanes for lanes in (pointer, mask) if lanes is not None]
    if pointer.promised is None and (mask is None or mask.promised is None):
        return value
    data = value.data
    for axis, size in enumerate(value.type.shape or (), 1):
        group = 1
        while size % (2 * group) == 0:
            groups = [_groups(lanes.data, axis, size, 2 * group) for lanes in given]
            if not all(bool((grouped == grouped[..., :1]).all()) for grouped in groups):
                break
            group *= 2
        if group > 1:
            grouped = _groups(data, axis, size, group)
            data = grouped[..., :1].expand(grouped.shape).flatten(-2).movedim(-1, axis)
    return value if data is value.data else value.taken_for(Lanes(value.type, data, undefined=value.undefined))


def _width(at: torch.Tensor, on: torch.Tensor, axis: int, size: int, item: int) -> int:
    """The most lanes along an axis that the compiler may combine: aligned, contiguous, with equal masks."""
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
