"""Handlers of elementwise operations: constants, arith, math and selections; casts.py has conversions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from evo_kernel.fitness.ir import library_loops
from evo_kernel.fitness.ir.contractions import contracted, fused
from evo_kernel.fitness.ir.device_functions import (
    FLUSHED,
    alike,
    device_function,
    exponential,
    flushed_exp2,
    fmax,
    fmin,
    half_away,
    inverse_root,
    maximum,
    minimum,
    quotient,
    raised,
    remainder,
    takes,
)
from evo_kernel.fitness.ir.engine import Frame, Machine, Unsupported, handles
from evo_kernel.fitness.ir.lanes import (
    AddressWord,
    Lanes,
    Sum,
    any_marked,
    any_undefined,
    as_address,
    as_number,
    separated,
    sum_of_parts,
)
from evo_kernel.fitness.ir.module import Operation
from evo_kernel.fitness.ir.nan_bits import device_bits
from evo_kernel.fitness.ir.types import IRError, Type, parse_element


def elementwise_result(
    operation: Operation, data: torch.Tensor, operands: Sequence[Lanes], *more: torch.Tensor
) -> list[Lanes]:
    """One result, undefined where an operand is or where `more` marks it."""
    undefined = any_marked(any_undefined(operands), *(mark for mark in more if bool(mark.any())))
    return [Lanes(operation.results[0].type, data, undefined=undefined)]


# --- constants and integers -----------------------------------------------------------------------------------------


@handles("arith.constant")
def _constant(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    text = operation.head.strip()
    dense = re.fullmatch(r"dense<(.*)>", text)
    values = parse_element(dense[1] if dense else text, type_.element)
    rank = type_.rank
    if isinstance(values, list):
        if len(values) != type_.elements:
            raise IRError(f"a constant of {len(values)} elements for {type_}")
        data = torch.tensor(values, dtype=_written(type_)).to(type_.dtype).reshape(1, *(type_.shape or ()))
        return [Lanes(type_, data)]
    if type_.is_integer and type_.element != "i1":
        return [Lanes(type_, sum_=Sum(int(values)))]
    data = torch.full((1,) * (rank + 1), values, dtype=_written(type_)).to(type_.dtype)
    return [Lanes(type_, data)]


def _written(type_: Type) -> torch.dtype:
    """Floats are printed with few digits: float32's largest as 3.40282347E+38, which float32 itself does not reach."""
    return torch.float64 if type_.is_float else type_.dtype


@handles("ub.poison")
def _poison(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    shape = (1,) * (type_.rank + 1)
    data = torch.zeros(shape, dtype=torch.float32).to(type_.dtype)
    return [Lanes(type_, data, undefined=torch.ones(shape, dtype=torch.bool))]


def _bounds(type_: Type) -> tuple[int, int]:
    half = 1 << (type_.bits - 1)
    return (0, 1) if type_.element == "i1" else (-half, half - 1)


def as_sum(type_: Type, value: Sum, undefined: torch.Tensor | None) -> Lanes:
    """Keep a sum if it fits its type, otherwise wrap it."""
    low, high = _bounds(type_)
    if value.low < low or value.high > high:
        value = value.exact()
        if value.low < low or value.high > high:
            return Lanes(type_, value.data(type_.rank).to(type_.dtype), undefined=undefined)
    return Lanes(type_, sum_=value, undefined=undefined)


@handles("arith.addi", "arith.subi", "arith.muli")
def _integer(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    a, b = operands
    type_ = operation.results[0].type
    if type_.element == "i1":
        data = a.data & b.data if operation.name == "arith.muli" else a.data ^ b.data
        return elementwise_result(operation, data, operands)
    if isinstance(b, AddressWord) and not isinstance(a, AddressWord) and operation.name == "arith.addi":
        a, b = b, a
    if isinstance(a, AddressWord) and operation.name == "arith.subi" and isinstance(b, AddressWord):
        return [*_integer(machine, frame, operation, (a.word, b.word))]
    if isinstance(a, AddressWord) and operation.name != "arith.muli" and not isinstance(b, AddressWord):
        return [AddressWord(*(_integer(machine, frame, operation, (side, b))[0] for side in (a.word, a.number)))]
    undefined = any_undefined(operands)
    if (a.has_sum and b.has_sum and type_.element != "i64") or (a.has_sum and b.has_sum and _modest(a.sum, b.sum)):
        left, right = a.sum, b.sum
        if operation.name == "arith.addi":
            return [as_sum(type_, left.plus(right), undefined)]
        if operation.name == "arith.subi":
            return [as_sum(type_, left.plus(right.times(-1)), undefined)]
        if not left.terms or not right.terms:
            factor, other = (left.constant, right) if not left.terms else (right.constant, left)
            return [as_sum(type_, other.times(factor), undefined)]
    function = {"arith.addi": torch.add, "arith.subi": torch.sub, "arith.muli": torch.mul}[operation.name]
    return [Lanes(type_, function(a.data, b.data), undefined=undefined)]


def _modest(a: Sum, b: Sum) -> bool:
    """Whether one further operation cannot overflow int64."""
    return max(abs(a.low), abs(a.high)) < 1 << 31 and max(abs(b.low), abs(b.high)) < 1 << 31


@handles("arith.divsi", "arith.remsi", "arith.ceildivsi", "arith.floordivsi", "arith.divui", "arith.remui",
         "arith.ceildivui")  # fmt: skip
def _division(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    a, b = (value.data for value in operands)
    type_ = operation.results[0].type
    unsigned = operation.name.endswith("ui")
    zero = b == 0
    b = torch.where(zero, 1, b) if bool(zero.any()) else b
    if unsigned and type_.bits == 64:
        data = torch.from_numpy(_unsigned_64(operation.name, a, b))
        return elementwise_result(operation, data, operands, zero)
    if unsigned:
        a, b = unsigned_of(a, type_), unsigned_of(b, type_)
    overflow = ~zero & (b == -1) & (a == _bounds(type_)[0]) if not unsigned else zero
    if not unsigned and bool(overflow.any()):
        b = torch.where(overflow, 1, b)  # the CPU raises a signal for the largest quotient of 64 bits
    kind = operation.name.split(".")[1]
    if kind.startswith("rem"):
        data = torch.fmod(a, b)
    else:
        wide_a, wide_b = a.long(), b.long()
        if kind.startswith("ceil"):
            data = -torch.div(-wide_a, wide_b, rounding_mode="floor")
        else:
            mode = "floor" if kind.startswith("floor") else "trunc"
            data = torch.div(wide_a, wide_b, rounding_mode=mode)
    data = data.to(type_.dtype)
    (result,) = elementwise_result(operation, data, operands, zero, overflow)
    # Rows and columns modulo a size are sums again, unless they wrap around: what is computed of them stays small.
    parts = separated(data.long())
    return [result] if len(parts) == 1 else [Lanes(type_, sum_=sum_of_parts(parts), undefined=result.undefined)]


def _unsigned_64(name: str, a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    left, right = (x.contiguous().numpy().view(np.uint64) for x in torch.broadcast_tensors(a, b))
    kind = name.split(".")[1]
    quotient = left % right if kind == "remui" else left // right
    if kind == "ceildivui":
        quotient = quotient + (left % right != 0)
    return quotient.astype(np.uint64).view(np.int64)


def unsigned_of(data: torch.Tensor, type_: Type) -> torch.Tensor:
    """int64 with the unsigned value of the bits; 64-bit values stay as they are."""
    return data.long() & ((1 << type_.bits) - 1) if type_.bits < 64 else data


@handles("arith.andi", "arith.ori", "arith.xori")
def _bits(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    a, b = operands
    type_ = operation.results[0].type
    kind = operation.name
    if type_.element == "i1" and kind == "arith.andi" and a.undefined is None and b.undefined is None:
        return [Lanes(type_, later=lambda: (*a.factors, *b.factors))]
    function = {"arith.andi": torch.bitwise_and, "arith.ori": torch.bitwise_or, "arith.xori": torch.bitwise_xor}[kind]
    data = function(a.data, b.data)
    undefined = any_undefined(operands)
    if undefined is not None and kind != "arith.xori":  # a defined 0 in `and`, or -1 in `or`, suffices
        absorbing = 0 if kind == "arith.andi" else (True if type_.element == "i1" else -1)
        for value in operands:
            decided = value.data == absorbing
            undefined = undefined & ~(decided if value.undefined is None else decided & ~value.undefined)
    return [Lanes(type_, data, undefined=undefined)]


@handles("arith.shli", "arith.shrsi", "arith.shrui")
def _shift(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    a, b = (value.data for value in operands)
    type_ = operation.results[0].type
    count = unsigned_of(b, type_)
    too_far = (count < 0) | (count >= type_.bits)
    count = torch.where(too_far, 0, count)
    if operation.name == "arith.shli":
        data = (a.long() << count).to(type_.dtype)
    elif operation.name == "arith.shrsi":
        data = (a.long() >> count).to(type_.dtype)
    elif type_.bits < 64:
        data = (unsigned_of(a, type_) >> count).to(type_.dtype)
    else:
        keep = torch.where(count == 0, -1, (1 << (64 - count).clamp(max=63)) - 1)
        data = (a >> count) & keep
    return elementwise_result(operation, data, operands, too_far)


_PREDICATES: dict[str, Callable[..., torch.Tensor]] = {
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip


@handles("arith.cmpi")
def _compare(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    a, b = operands
    predicate = operation.words[0]
    kind, unsigned = predicate.lstrip("su") if predicate not in ("eq", "ne") else predicate, predicate[0] == "u"
    if isinstance(a, AddressWord) and predicate in ("eq", "ne") and b.integer() == 0:
        a = _other_than_zero(a)
    undefined = any_undefined((a, b))
    type_ = operation.results[0].type
    if a.type.element != "i1" and a.has_sum and b.has_sum:
        left, right = a.sum, b.sum
        if _modest(left, right) and (not unsigned or (left.low >= 0 and right.low >= 0)):
            difference = left.plus(right.times(-1))
            return [Lanes(type_, later=lambda: _comparison(difference, kind, type_.rank), undefined=undefined)]
    x, y = a.data, b.data
    if unsigned:
        x, y = (unsigned_of(v, a.type) if a.type.bits < 64 else v ^ (-(1 << 63)) for v in (x, y))
        if a.type.element == "i1":
            x, y = x.long(), y.long()
    elif a.type.element == "i1" and kind not in ("eq", "ne"):
        x, y = -x.long(), -y.long()
    return [Lanes(type_, _PREDICATES[kind](x, y), undefined=undefined)]


def _other_than_zero(value: AddressWord) -> Lanes:
    """With 1 for addresses, because no buffer lies at 0."""
    word, number = value.word.undefined, value.number.undefined
    if word is None:
        return Lanes(value.type, sum_=Sum(1))
    undefined = None if number is None else word & number
    return Lanes(value.type, torch.where(word, value.number.data, 1), undefined=undefined)


def _comparison(difference: Sum, kind: str, rank: int) -> tuple[torch.Tensor, ...]:
    """Factors of `difference kind 0`; none if it holds everywhere."""
    low, high = difference.low, difference.high
    always = {"eq": low == high == 0, "ne": low > 0 or high < 0, "lt": high < 0, "le": high <= 0, "gt": low > 0,
              "ge": low >= 0}[kind]  # fmt: skip
    if always:
        return ()
    never = {"eq": low > 0 or high < 0, "ne": low == high == 0, "lt": low >= 0, "le": low > 0, "gt": high <= 0,
             "ge": high < 0}[kind]  # fmt: skip
    if never:
        return (torch.zeros((1,) * (rank + 1), dtype=torch.bool),)
    holds = _PREDICATES[kind](difference.data(rank), 0)
    return () if bool(holds.all()) else (holds,)


@handles("arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui")
def _integer_extreme(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    a, b = (value.data for value in operands)
    type_ = operation.results[0].type
    unsigned = operation.name.endswith("ui")
    largest = ("max" in operation.name) == (unsigned or type_.element != "i1")  # a signed true is -1
    if unsigned or type_.element == "i1":
        x, y = (unsigned_of(v, type_) if type_.bits < 64 else v ^ (-(1 << 63)) for v in (a, b))
        return elementwise_result(operation, torch.where((x >= y) == largest, a, b), operands)
    return elementwise_result(operation, (torch.maximum if largest else torch.minimum)(a, b), operands)


@handles("tt.mulhiui")
def _high_product(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    if type_.bits == 32:
        a, b = (unsigned_of(v.data, type_) for v in operands)
        # 32 x 16 bits at a time: the product of two unsigned 32-bit numbers does not fit int64
        low = a * (b & 0xFFFF)
        high = a * (b >> 16) + (low >> 16)
        return elementwise_result(operation, (high >> 16).to(torch.int32), operands)
    left, right = (x.contiguous().numpy().view(np.uint64).astype(object) for x in
                   torch.broadcast_tensors(*(v.data for v in operands)))  # fmt: skip
    high = ((left * right) >> 64).astype(np.uint64).view(np.int64)
    return elementwise_result(operation, torch.from_numpy(np.ascontiguousarray(high)), operands)


# --- floating point -------------------------------------------------------------------------------------------------


_FLOAT: dict[str, Callable[..., torch.Tensor]] = {
    "arith.addf": torch.add, "arith.subf": torch.sub, "arith.mulf": torch.mul, "arith.divf": quotient,
    "arith.remf": remainder, "arith.negf": torch.neg,
    "arith.maximumf": maximum, "arith.minimumf": minimum, "math.exp": exponential, "math.exp2": flushed_exp2,
    "math.log": torch.log, "math.log2": torch.log2, "math.log10": torch.log10, "math.cos": torch.cos,
    "math.cosh": alike(torch.cosh), "math.acos": torch.acos, "math.rsqrt": inverse_root,
    **{f"math.{name}": FLUSHED[name] for name in (
        "log1p", "expm1", "sin", "tan", "tanh", "sinh", "atan", "asin", "atan2", "sqrt", "erf", "floor", "ceil")},
    "math.trunc": torch.trunc, "math.round": half_away,
    "math.roundeven": torch.round, "math.absf": torch.abs, "math.fma": fused, "math.powf": raised,
    "math.copysign": torch.copysign, "tt.precise_sqrt": torch.sqrt, "tt.precise_divf": torch.div,
}  # fmt: skip


@handles(*_FLOAT)
def _float(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    library_loops.observe(machine, operation.name, frame.programs, operands)
    data = contracted(machine, frame, operation)
    if data is None:
        data = _FLOAT[operation.name](*_read(machine, operation, operation.name, operands))
    return elementwise_result(operation, data, operands)


_READ_SIGNS = ("copysign", "float_as_", "signbit")


def _read(machine: Machine, operation: Operation, name: str, operands: Sequence[Lanes]) -> Iterator[torch.Tensor]:
    """Data of operands, with a GPU's NaN for functions that read their signs."""
    if not any(part in name for part in _READ_SIGNS):
        return (value.data for value in operands)
    return (device_bits(machine, *pair) for pair in zip(operation.operands, operands, strict=True))


@handles("arith.maxnumf", "arith.minnumf")
def _number_extreme(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    a, b = (value.data for value in operands)
    data = fmax(a, b) if operation.name == "arith.maxnumf" else fmin(a, b)
    return elementwise_result(operation, data, operands, *(signaling(value) for value in (a, b)))


def signaling(data: torch.Tensor) -> torch.Tensor:
    """Where a float64 is a signaling NaN, for which LLVM's maxnum and minnum may return either operand or NaN.

    For narrower types they are instructions, which treat it as any NaN.
    """
    if data.dtype is not torch.float64 or not bool(data.isnan().any()):
        return torch.zeros(1, dtype=torch.bool)
    return data.isnan() & (data.contiguous().view(torch.int64) & (1 << 51) == 0)


@handles("math.absi")
def _absolute(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    """Undefined for the least integer: the compiler assumes that results are not negative."""
    data = operands[0].data
    return elementwise_result(operation, torch.abs(data), operands, data == torch.iinfo(data.dtype).min)


@handles("math.ctpop", "math.ctlz", "math.cttz")
def _count_bits(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    type_ = operation.results[0].type
    value = operands[0].data.long()
    bits = [(value >> n) & 1 for n in range(type_.bits)]
    if operation.name == "math.ctpop":
        return elementwise_result(operation, sum(bits[1:], bits[0]).to(type_.dtype), operands)
    order = bits if operation.name == "math.cttz" else bits[::-1]
    count = torch.full_like(value, type_.bits)
    for position in reversed(range(type_.bits)):
        count = torch.where(order[position] == 1, position, count)
    return elementwise_result(operation, count.to(type_.dtype), operands)


@handles("tt.clampf")
def _clamp(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    x, low, high = (value.data for value in operands)
    if "all" in operation.words or operation.attributes.get("propagateNan") == "all":
        return elementwise_result(operation, minimum(maximum(x, low), high), operands)
    # For NaN, one of the bounds: which one depends on the device's implementation.
    return elementwise_result(operation, fmin(fmax(x, low), high), operands, x.isnan())


@handles("arith.cmpf")
def _compare_floats(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    a, b = (value.data for value in operands)
    predicate = operation.words[0]
    if predicate in ("ord", "uno"):
        unordered = a.isnan() | b.isnan()
        return elementwise_result(operation, unordered if predicate == "uno" else ~unordered, operands)
    if predicate in ("false", "true"):
        return elementwise_result(operation, torch.full((1,) * a.dim(), predicate == "true"), operands)
    holds = _PREDICATES[predicate[1:]](a, b)
    if predicate == "one":
        holds = holds & ~(a.isnan() | b.isnan())
    elif predicate[0] == "u" and predicate != "une":
        holds = holds | a.isnan() | b.isnan()
    return elementwise_result(operation, holds, operands)


@handles("arith.select")
def _select(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    condition, a, b = operands
    type_ = operation.results[0].type
    if condition.undefined is None and (known := condition.boolean()) is not None:
        return [a if known else b]
    if isinstance(a, AddressWord) or isinstance(b, AddressWord):
        sides = [(condition, side(a), side(b)) for side in (as_address, as_number)]
        return [AddressWord(*(_select(machine, frame, operation, side)[0] for side in sides))]
    chosen = condition.data
    if chosen.dim() == 1 and type_.rank:  # a scalar condition selects between tensors
        chosen = chosen.reshape(-1, *(1,) * type_.rank)
    if type_.element.startswith("f8"):
        data = torch.where(chosen, a.data.view(torch.int8), b.data.view(torch.int8)).view(type_.dtype)
    else:
        data = torch.where(chosen, a.data, b.data)
    undefined = None
    if a.undefined is not None or b.undefined is not None:
        none = torch.zeros((1,) * data.dim(), dtype=torch.bool)
        undefined = torch.where(chosen, none if a.undefined is None else a.undefined,
                                none if b.undefined is None else b.undefined)  # fmt: skip
        undefined = undefined if bool(undefined.any()) else None
    mark = condition.undefined
    if mark is not None and mark.dim() == 1 and type_.rank:
        mark = mark.reshape(-1, *(1,) * type_.rank)
    return [Lanes(type_, data, undefined=any_marked(undefined, mark))]


# --- device functions -----------------------------------------------------------------------------------------------


@handles("tt.extern_elementwise")
def _device_function(machine: Machine, frame: Frame, operation: Operation, operands: Sequence[Lanes]) -> list[Lanes]:
    symbol = operation.attributes.get("symbol", "").strip('"')
    function = device_function(symbol)
    if function is None:
        raise Unsupported(f"the executor does not know the device function {symbol[:80]}")
    if not takes(symbol, [value.type.element for value in operands], operation.results[0].type.element):
        raise Unsupported(f"the device function {symbol[:80]} for other types than it has")
    library_loops.observe(machine, symbol, frame.programs, operands)
    data = function(*_read(machine, operation, symbol, operands))
    return elementwise_result(operation, data.to(operation.results[0].type.dtype), operands)
