"""Handlers of reductions, scans, histograms and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import torch

from evo_kernel.fitness.ir.casts import widened
from evo_kernel.fitness.ir.device_functions import tf32
from evo_kernel.fitness.ir.engine import ExecutionObserver, Frame, Machine, Unsupported, ended, handles
from evo_kernel.fitness.ir.lanes import Lanes, any_marked, any_undefined, taken
from evo_kernel.fitness.ir.layouts import expanded, fits_product, order_of_sums
from evo_kernel.fitness.ir.memory import MemoryFault
from evo_kernel.fitness.ir.module import Operation, Region
from evo_kernel.fitness.ir.pointwise import elementwise_result, signaling
from evo_kernel.fitness.ir.types import Type


def _zeros_apart(function: Callable[..., torch.Tensor], largest: bool) -> Callable[..., torch.Tensor]:
    """amax or amin of floats, for which -0.0 is below +0.0 (see device_functions.py)."""

    def reduce(data: torch.Tensor, axis: int) -> torch.Tensor:
        reduced = function(data, axis)
        zero = reduced == 0
        if not bool(zero.any()):
            return reduced
        positive = (data == 0) & ~data.signbit() if largest else (data != 0) | ~data.signbit()
        above = positive.any(axis) if largest else positive.all(axis)
        return torch.where(zero, torch.where(above, 0.0, -0.0).to(data.dtype), reduced)

    return reduce


def _without_nan(function: Callable[..., torch.Tensor], other: float) -> Callable[..., torch.Tensor]:
    """`maxnum` and `minnum` ignore NaN unless all elements are NaN."""

    def reduce(data: torch.Tensor, axis: int) -> torch.Tensor:
        reduced = function(data, axis)
        if not bool(reduced.isnan().any()):
            return reduced
        nan = data.isnan()
        return torch.where(nan.all(axis), reduced, function(torch.where(nan, other, data), axis))

    return reduce


def _sum(data: torch.Tensor, axis: int) -> torch.Tensor:
    """Of contiguous values: torch's order depends on how they lie, and that on the programs executed together."""
    return data.contiguous().sum(axis, dtype=data.dtype)


def _sum_by_distances(data: torch.Tensor, axis: int, distances: Sequence[int]) -> torch.Tensor:
    """Of as many elements as the distances reach: pairs at the first distance, then pairs of their sums, ..."""
    left = sorted(distances, reverse=True)
    data = data.unflatten(axis, (2,) * len(left))
    for distance in distances:
        pairs = data.unbind(axis + left.index(distance))
        data = pairs[0] + pairs[1]
        left.remove(distance)
    return data


def _sum_in_halves(data: torch.Tensor, axis: int) -> torch.Tensor:
    """Neighbours first, each sum rounded, as threads, warps and blocks add up; torch would add in 32 bits."""
    while (size := data.shape[axis]) > 1:
        pairs = data.narrow(axis, 0, size // 2 * 2).unflatten(axis, (size // 2, 2)).unbind(axis + 1)
        summed = pairs[0] + pairs[1]
        data = torch.cat([summed, data.narrow(axis, size - 1, 1)], axis) if size % 2 else summed
    return data.select(axis, 0)


_NARROW = {"f16", "bf16"}
_largest, _smallest = _zeros_apart(torch.amax, True), _zeros_apart(torch.amin, False)
_WHOLE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "arith.addf": _sum, "arith.addi": _sum, "arith.maxnumf": _without_nan(_largest, float("-inf")),
    "arith.minnumf": _without_nan(_smallest, float("inf")), "arith.maximumf": _largest, "arith.minimumf": _smallest,
    "arith.maxsi": torch.amax, "arith.minsi": torch.amin,
}  # fmt: skip


def _only_operation(region: Region) -> str:
    """The name of a combiner's only operation on its two arguments; empty for other combiners."""
    operations, arguments = region.operations, [argument.name for argument in region.arguments]
    if len(operations) != 2 or len(arguments) != 2 or sorted(operations[0].operands) != sorted(arguments):
        return ""
    return operations[0].name if operations[1].operands == (operations[0].results[0].name,) else ""


def _along(value: Lanes, axis: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Data and marks with the true size along an axis."""
    size = (value.type.shape or ())[axis]

    def stretched(data: torch.Tensor) -> torch.Tensor:
        return data.expand(*data.shape[: axis + 1], size, *data.shape[axis + 2 :])

    return stretched(value.data), None if value.undefined is None else stretched(value.undefined)


@handles("tt.reduce")
def _reduce(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    axis, region = operation.integer("axis"), operation.regions[0]
    columns = [_along(value, axis) for value in operands]
    undefined = any_marked(*(mark.any(axis + 1) for _, mark in columns if mark is not None))
    only = _only_operation(region)
    whole = _WHOLE.get(only) if operands[0].type.element != "i1" else None
    if only in ("arith.maxnumf", "arith.minnumf") and bool((marked := signaling(columns[0][0])).any()):
        undefined = any_marked(undefined, marked.any(axis + 1))
    if only == "arith.addf" and operands[0].type.element in _NARROW:
        whole = _sum_in_halves
    elif only == "arith.addf":
        shape, chosen = operands[0].type.shape or (), operation.attributes.get("layout", "").strip('"')
        layout = expanded(operation.types[0], machine.module.layouts) or chosen
        distances = order_of_sums(layout, shape, axis)
        if distances and 1 << len(distances) == shape[axis]:
            whole = partial(_sum_by_distances, distances=distances)
    if whole is not None:
        results = [whole(columns[0][0], axis + 1)]
    else:
        results = _folded(machine, frame, region, [data for data, _ in columns], [v.type for v in operands], axis + 1)
    return [
        Lanes(result.type, data, undefined=undefined) for result, data in zip(operation.results, results, strict=True)
    ]


def _folded(
    machine: Machine, frame: Frame, region: Region, data: list[torch.Tensor], types: Sequence[Type], axis: int
) -> list[torch.Tensor]:
    """Combine elements of an axis until one is left: in a random order and as an uneven tree, which Triton allows.

    So a combiner that is not associative and commutative gives different results.
    """
    shape = np.broadcast_shapes(*(column.shape for column in data))
    data = [column.expand(shape) for column in data]
    if machine.memory.strict and shape[axis] > 1:
        data = [taken(column, axis, machine.order(shape[axis])) for column in data]
    while (size := data[0].shape[axis]) > 1:
        pairs = max(1, size // 3)
        left = [column.narrow(axis, 0, pairs) for column in data]
        right = [column.narrow(axis, pairs, pairs) for column in data]
        combined = _combined(machine, frame, region, left, right, types)
        rest = [column.narrow(axis, 2 * pairs, size - 2 * pairs) for column in data]
        data = [torch.cat([c, r], axis) if r.shape[axis] else c for c, r in zip(combined, rest, strict=True)]
    return [column.select(axis, 0) for column in data]


def _combined(
    machine: Machine,
    frame: Frame,
    region: Region,
    left: Sequence[torch.Tensor],
    right: Sequence[torch.Tensor],
    types: Sequence[Type],
) -> list[torch.Tensor]:
    """Apply a combiner to whole tensors: its scalar operations run on tensors of the operands' shape."""
    arguments = [
        Lanes(Type(type_.element, tuple(data.shape[1:]), type_.pointee), data)
        for type_, data in zip((*types, *types), (*left, *right), strict=True)
    ]
    inner = Frame(frame.programs, frame)
    inner.bind(region.arguments, arguments)
    observer, machine.combining = machine.observer, True
    machine.observer = None if observer is None else _LibraryOnly(observer)
    try:
        results = ended(machine.block(inner, _lifted_operations(region, tuple(left[0].shape[1:]))))
    finally:
        machine.observer, machine.combining = observer, False
    if machine.memory.strict and any(r.undefined is not None and bool(r.undefined.any()) for r in results):
        raise MemoryFault("undefined", "combines defined values to an undefined one")
    return [result.data.expand(left[0].shape) for result in results]


class _LibraryOnly:
    """Observes a combiner: its operations are many, but the loops of functions take what each element needs."""

    def __init__(self, observer: ExecutionObserver) -> None:
        self.library, self.waited = observer.library, observer.waited

    def operation(self, operation: Operation, programs: torch.Tensor, result: Type | None) -> None: ...

    def access(
        self, operation: Operation, pointer: Lanes, mask: Lanes | None, programs: torch.Tensor, item: int, shape: tuple
    ) -> None: ...

    def iteration(self, operation: Operation, programs: torch.Tensor) -> None: ...


@lru_cache(maxsize=1024)
def _lifted_operations(region: Region, shape: tuple[int, ...]) -> tuple[Operation, ...]:
    return tuple(
        replace(o, results=tuple(replace(r, type=Type(r.type.element, shape, r.type.pointee)) for r in o.results))
        for o in region.operations
    )


@handles("tt.scan")
def _scan(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    axis, region, reverse = operation.integer("axis"), operation.regions[0], operation.flag("reverse")
    columns = [_along(value, axis) for value in operands]
    shape = np.broadcast_shapes(*(data.shape for data, _ in columns))
    data = [column.expand(shape) for column, _ in columns]
    marks = any_marked(*(mark for _, mark in columns))
    if reverse:
        data = [column.flip(axis + 1) for column in data]
        marks = None if marks is None else marks.flip(axis + 1)
    data = _prefixes(machine, frame, region, data, [v.type for v in operands], axis + 1)
    if marks is not None:
        marks = marks.long().cummax(axis + 1).values.bool()
    if reverse:
        data = [column.flip(axis + 1) for column in data]
        marks = None if marks is None else marks.flip(axis + 1)
    return [Lanes(r.type, column, undefined=marks) for r, column in zip(operation.results, data, strict=True)]


def _prefixes(
    machine: Machine, frame: Frame, region: Region, data: list[torch.Tensor], types: Sequence[Type], axis: int
) -> list[torch.Tensor]:
    """All prefixes in logarithmically many steps (Hillis and Steele, 1986), one of which does not double.

    Prefixes of the last `reach` elements are combined: with equal steps, means of two elements would give the mean of
    all.
    """
    known = _only_operation(region)
    if known in ("arith.addf", "arith.addi") and types[0].element not in ("i1", *_NARROW):
        return [data[0].cumsum(axis, dtype=data[0].dtype)]
    size, reach, single = data[0].shape[axis], 1, data
    while reach < size:
        step, last = (1, single) if reach == 2 else (reach, data)
        left = [column.narrow(axis, reach - step, size - reach) for column in data]
        right = [column.narrow(axis, reach, size - reach) for column in last]
        combined = _combined(machine, frame, region, left, right, types)
        data = [
            torch.cat([column.narrow(axis, 0, reach), new], axis) for column, new in zip(data, combined, strict=True)
        ]
        reach += step
    return data


@handles("tt.histogram")
def _histogram(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    value = operands[0]
    type_ = operation.results[0].type
    bins = (type_.shape or (1,))[0]
    programs = max(lanes.programs for lanes in operands)
    data = value.full(programs).long()
    counted = torch.ones(1, dtype=torch.bool).expand(data.shape)
    if len(operands) > 1:
        counted = operands[1].data.expand(data.shape)
    outside = counted & ((data < 0) | (data >= bins))
    weights = (counted & ~outside).to(type_.dtype)
    made_ = torch.zeros((programs, bins), dtype=type_.dtype)
    made_.scatter_add_(1, data.clamp(0, bins - 1), weights)
    marks = outside.any(1, keepdim=True)
    undefined = any_undefined(operands)
    undefined = None if undefined is None else undefined.expand(data.shape).any(1, keepdim=True)
    return [Lanes(type_, made_, undefined=any_marked(undefined, marks if bool(marks.any()) else None))]


# --- matrix products ------------------------------------------------------------------------------------------------


def _bf16(data: torch.Tensor) -> torch.Tensor:
    return data.bfloat16().float()


def _truncated(data: torch.Tensor) -> torch.Tensor:
    """Tensor cores ignore the last 13 bits of float32 operands."""
    return torch.where(data.isfinite(), (data.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32), data)


_PARTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "tf32": (_truncated, 1), "tf32x3": (tf32, 2), "bf16x3": (_bf16, 2), "bf16x6": (_bf16, 3),
}  # fmt: skip
"""For float32 operands: how a part is rounded, and the number of parts per operand."""


def _split_product(
    a: torch.Tensor, b: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor], count: int
) -> torch.Tensor:
    """A product of operands split into parts: the terms whose part numbers add up to less than `count`."""
    left, right = [], []
    for data, parts in ((a, left), (b, right)):
        rest = data
        for _ in range(count):
            parts.append(rounded(rest))
            rest = rest - parts[-1]
    terms = [torch.matmul(x, y) for i, x in enumerate(left) for j, y in enumerate(right) if i + j < count]
    return sum(reversed(terms[:-1]), terms[-1])


@handles("tt.dot")
def _dot(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    a, b, c = operands
    require_fitting_product(machine, operation.results[0].type)
    return [product_of(a, b, c, operation.attributes.get("inputPrecision", "ieee"), operation.results[0].type)]


def require_fitting_product(machine: Machine, type_: Type) -> None:
    """Raises Unsupported for a product in a layout that its instruction does not have."""
    if not fits_product(expanded(type_, machine.module.layouts), type_.element):
        raise Unsupported(f"a product in a layout that its instruction does not have: {type_}"[:200])


def _added_in_halves(left: torch.Tensor, right: torch.Tensor, total: torch.Tensor, terms: int) -> torch.Tensor:
    """A product added to float16: an instruction multiplies 32 bytes of each row, and rounds what it adds up (Fasi et
    al., Numerical behavior of NVIDIA tensor cores, 2021)."""
    for rows, columns in zip(left.split(terms, -1), right.split(terms, -2), strict=True):
        total = (torch.matmul(rows, columns) + total.float()).half()
    return total


def product_of(a: Lanes, b: Lanes, c: Lanes, precision: str, type_: Type) -> Lanes:
    """a · b + c of blocks, as `type_`."""
    left, right = a.full(), b.full()
    if type_.is_integer:
        product = torch.matmul(left.double(), right.double()).to(torch.int64) + c.data.long()
        data = product.to(type_.dtype)
    elif type_.element == "f64":
        data = torch.matmul(left, right) + c.data
    elif type_.element in ("f32", "f16", "bf16"):
        parts = _PARTS.get(precision) if a.type.element == "f32" else None
        if type_.element == "f16" and a.type.bits <= 16:
            data = _added_in_halves(left.float(), right.float(), c.data, 256 // a.type.bits)
        else:
            product = _split_product(left, right, *parts) if parts else torch.matmul(left.float(), right.float())
            data = (product + c.data.float()).to(type_.dtype)
    else:
        raise Unsupported(f"a product into {type_.element}")
    rows = None if a.undefined is None else a.undefined.any(-1, keepdim=True)
    columns = None if b.undefined is None else b.undefined.any(-2, keepdim=True)
    return Lanes(type_, data, undefined=any_marked(c.undefined, rows, columns))


_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
_SCALED = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "fp16": torch.float16, "bf16": torch.bfloat16}


@handles("tt.dot_scaled")
def _dot_scaled(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Microscaling formats: groups of 32 elements along K share a power of two (OCP MX, section 5.2).

    As Triton computes them before Blackwell: operands, scales and their products are rounded to bf16, or to f16 where
    one operand has that, which has no power of two below 2^-24 or above 2^15.
    """
    given = iter(operands)
    left, left_scale = next(given), None
    parts = [part.strip() for part in operation.head.split(",")]
    if " scale " in parts[0]:
        left_scale = next(given)
    right, right_scale = next(given), None
    if " scale " in parts[1]:
        right_scale = next(given)
    accumulator = next(given)
    kinds = operation.attributes["lhs"], operation.attributes["rhs"]
    dtype = torch.float16 if "fp16" in kinds else torch.bfloat16
    x = _unpacked(left, kinds[0], -1, operation.attributes.get("lhs_k_pack", "true") == "true", dtype)
    y = _unpacked(right, kinds[1], -2, operation.attributes.get("rhs_k_pack", "true") == "true", dtype)
    if left_scale is not None:
        x = x * _powers(left_scale, x.shape[-1]).to(dtype)
    if right_scale is not None:
        y = y * _powers(right_scale, y.shape[-2]).to(dtype).transpose(-1, -2)
    data = torch.matmul(x.float(), y.float()) + accumulator.data
    rows = [
        mark.any(-1, keepdim=True) for value in (left, left_scale) if value and (mark := value.undefined) is not None
    ]
    columns = [] if right.undefined is None else [right.undefined.any(-2, keepdim=True)]
    if right_scale is not None and right_scale.undefined is not None:
        columns.append(right_scale.undefined.any(-1, keepdim=True).transpose(-1, -2))
    if any(operation.attributes.get(f"{side}_k_pack", "true") != "true" for side in ("lhs", "rhs")):
        rows, columns = [], [mark.any().expand((1,) * data.dim()) for mark in (*rows, *columns)]
    return elementwise_result(operation, data, [accumulator], *rows, *columns)


def _unpacked(value: Lanes, kind: str, k_axis: int, packed_along_k: bool, dtype: torch.dtype) -> torch.Tensor:
    data = value.full()
    if kind != "e2m1":
        if kind not in _SCALED:
            raise Unsupported(f"tt.dot_scaled of {kind}")
        return widened(data.view(_SCALED[kind]) if data.dtype in (torch.int8, torch.uint8) else data, dtype)
    axis = k_axis if packed_along_k else (-1 if k_axis == -2 else -2)
    codes = data.long() & 0xFF
    pair = torch.stack([_E2M1[codes & 15], _E2M1[codes >> 4]], -1)  # low nibble first
    pair = pair.movedim(-1, pair.dim() + axis) if axis == -1 else pair.movedim(-1, pair.dim() - 2)
    shape = list(data.shape)
    shape[axis] *= 2
    return pair.reshape(shape).to(dtype)


def _powers(scale: Lanes, length: int) -> torch.Tensor:
    data = scale.full()
    codes = data.long() & 0xFF
    powers = torch.where(codes == 255, torch.nan, torch.ldexp(torch.tensor(1.0), codes - 127))
    return powers.repeat_interleave(length // data.shape[-1], -1)
