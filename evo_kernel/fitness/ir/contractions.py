"""Products with sums, rounded once: which of a module's compiled code does so, and what comes out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import torch

from evo_kernel.fitness.ir.engine import HANDLERS, Frame, Machine, ended
from evo_kernel.fitness.ir.lanes import Lanes
from evo_kernel.fitness.ir.module import IRModule, Operation, Region
from evo_kernel.fitness.ir.types import parse_element
from evo_kernel.fitness.marks import any_of

_SUMS = ("arith.addf", "arith.subf")
_REPEATED = frozenset({"tt.splat", "tt.broadcast", "tt.expand_dims"})
_SAME_ELEMENTS = _REPEATED | {"tt.reshape", "tt.trans", "tt.join", "tt.split"}


@dataclass(frozen=True, slots=True)
class _Product:
    """A value that is a product, or the negative of one; or of which some elements are.

    `origin`: the product, or what moves its elements, with the value as result `place`. `plain`: no element changes its
    place, and no part is assembly.
    """

    product: Operation
    origin: Operation
    place: int
    negative: bool
    plain: bool


@dataclass(frozen=True)
class _Contraction:
    """A sum or difference, as an operation of `arith`, with a product: compiled code rounds once (fma).

    `side`: which operand is made of the product. `sure`: whether it always does; a product of another block, in another
    place or in assembly only if the compiler moves it. `products`: those visible there, by their names.
    """

    operation: Operation
    side: int
    sure: bool
    products: Mapping[str, _Product]


@lru_cache(maxsize=256)
def _contractions(module: IRModule) -> Mapping[Operation, _Contraction]:
    found: dict[Operation, _Contraction] = {}
    for function in module.functions.values() if module.fuses else ():
        uses = Counter(name for operation in function.body.walk() for name in operation.operands)
        found |= _inside(function.body, {}, {}, uses)
    return found


def _inside(
    region: Region, products: dict[str, _Product], ones: dict[str, int], uses: Mapping[str, int]
) -> Iterator[tuple[Operation, _Contraction]]:
    """LLVM contracts whatever else a product is used for; of two products that of the sum's block, if only one is, else
    the one that is used less, else the left.

    `products`, `ones`: what is visible from outside; constants of 1 and -1.
    """
    products, ones = dict(products), dict(ones)
    for argument in (argument for block in region.blocks for argument in block.arguments):
        products.pop(argument.name, None)
        ones.pop(argument.name, None)
    for block in region.blocks:
        own = {operation.ordinal for operation in block.operations}
        for given in block.operations:
            operation = _arithmetic(given)
            found = list[tuple[bool, int, int, bool]]()
            for side, name in enumerate(operation.operands if operation.name in _SUMS else ()):
                if (made := products.get(name)) is not None:
                    elsewhere = made.product.ordinal not in own
                    sure = made.plain and operation is given and not elsewhere
                    found.append((elsewhere, uses[made.product.results[0].name], side, sure))
            if found:
                _, _, side, sure = min(found)
                yield given, _Contraction(operation, side, sure, products)
            for inner in given.regions:
                yield from _inside(inner, products, ones, uses)
            for place, value in enumerate(operation.results):
                made, one = _product(operation, place, operation is given, products, ones), _one(operation, ones)
                products |= {} if made is None else {value.name: made}
                ones |= {value.name: one} if one else {}


_ASSEMBLY = re.compile(r'\s*"\s*(add|sub|mul|neg)\.f32 \$0, *\$([12])(?:, *\$([12]))? *;?\s*"')


def _arithmetic(operation: Operation) -> Operation:
    """An instruction written as assembly without a rounding, which the assembler contracts as any other, as the
    operation that it is."""
    match = _ASSEMBLY.match(operation.head) if operation.name == "tt.elementwise_inline_asm" else None
    if match is None:
        return operation
    places = [int(number) - 1 for number in match.groups()[1:] if number]
    if len(places) != (1 if match[1] == "neg" else 2) or max(places) >= len(operation.operands):
        return operation
    return replace(operation, name=f"arith.{match[1]}f", operands=tuple(operation.operands[place] for place in places))


def _product(
    operation: Operation, place: int, plain: bool, products: Mapping[str, _Product], ones: Mapping[str, int]
) -> _Product | None:
    """A result of an operation. The compiler folds factors of 1 and -1."""
    name, operands = operation.name, operation.operands
    if name in _SAME_ELEMENTS and not operation.flag("allow_reorder"):
        made = next((products[operand] for operand in operands if operand in products), None)
        plain = made is not None and made.plain and name in _REPEATED
        return None if made is None else _Product(made.product, operation, place, False, plain)
    sign, source = -1 if name == "arith.negf" else 0, 0
    for side in {"arith.mulf": (1, 0), "arith.divf": (1,)}.get(name, ()):
        if not sign and (sign := ones.get(operands[side], 0)):
            source = 1 - side
    if sign:
        made = products.get(operands[source])
        return made and replace(made, negative=made.negative ^ (sign < 0), plain=made.plain and plain)
    return _Product(operation, operation, 0, False, plain) if name == "arith.mulf" else None


def _one(operation: Operation, ones: Mapping[str, int]) -> int:
    """1 or -1 for a constant that is; 0 for other values."""
    if operation.name in _REPEATED:
        return ones.get(operation.operands[0], 0)
    if operation.name != "arith.constant" or not operation.results[0].type.is_float:
        return 0
    dense = re.fullmatch(r"dense<(.*)>", operation.head.strip())
    value = parse_element(dense[1] if dense else operation.head, operation.results[0].type.element)
    return int(value) if value in (1.0, -1.0) else 0


def contracted(machine: Machine, frame: Frame, operation: Operation) -> torch.Tensor | None:
    """A sum or difference with a product, rounded once: some of its elements where only the compiler knows whether.
    None for other operations."""
    found = _contractions(machine.module).get(operation)
    if found is None:
        return None
    operands, side = found.operation.operands, found.side
    left, right = (value.data for value in _factors(machine, frame, operands[side], found.products))
    product, other = frame.lookup(operands[side]).data, frame.lookup(operands[1 - side]).data
    if found.operation.name == "arith.subf":
        left, product, other = (left, product, -other) if side == 0 else (-left, -product, other)
    once, type_ = fused(left, right, other), operation.results[0].type
    if found.sure or type_.elements == 1:
        return once
    some = machine.order(type_.elements).reshape(1, *(type_.shape or ())) % 2 == 0
    return torch.where(some, once, product + other)


def _factors(machine: Machine, frame: Frame, name: str, products: Mapping[str, _Product]) -> tuple[Lanes, Lanes]:
    """Two factors of a value; where it is no product, itself and 1."""
    made = products.get(name)
    if made is None:
        value = frame.lookup(name)
        return value, Lanes(value.type, torch.ones((1,) * (value.type.rank + 1), dtype=value.type.dtype))
    if made.origin is made.product:
        left, right = (frame.lookup(operand) for operand in made.origin.operands)
    else:
        sides = zip(*(_factors(machine, frame, operand, products) for operand in made.origin.operands), strict=True)
        move = HANDLERS[made.origin.name]
        left, right = (ended(move(machine, frame, made.origin, side))[made.place] for side in sides)
    return (Lanes(left.type, -left.data) if made.negative else left), right


def fused(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x * y + z with one rounding.

    In float64: exact product and sum in two parts, the lower rounded to odd (Boldo and Melquiond, Emulation of FMA and
    correctly rounded sums, 2008). In float32 only where a float64 lies between two float32, and may do so by rounding.
    """
    if z.dtype == torch.float32:
        wide = torch.addcmul(z.double(), x.double(), y.double())  # the product is exact
        rounded, between = wide.float(), wide.view(torch.int64) & ((1 << 29) - 1) == 1 << 28
        if bool(any_of(between)):
            terms = (term.expand(wide.shape)[between].double() for term in (x, y, z))
            rounded[between] = _rounded_to_odd(*terms).float()
        return rounded
    if z.dtype != torch.float64:
        return narrowed(_rounded_to_odd(x.double(), y.double(), z.double()), z.dtype)
    high = x * y
    low = _product_error(x, y, high)
    top, lower = _two_sum(z, low)
    total, rest = _two_sum(high, top)
    rounded = total + _to_odd(*_two_sum(lower, rest))
    sizes = torch.stack(torch.broadcast_tensors(x, y, z)).abs()
    plain = ((sizes == 0) | ((sizes > 2.0**-400) & (sizes < 2.0**400))).all(0)
    if not bool(plain.all()):
        rounded = torch.where(plain, rounded, _fused_slowly(x, y, z, ~plain))
    return rounded


def narrowed(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Floats as a type of fewer bits, rounded once. torch rounds float64 to float32 on its way to 16 bits."""
    if data.dtype == torch.float64 and dtype.itemsize == 2:
        data, exact = data.float(), data
        data = _to_odd(data, exact - data.double())
    return data.to(dtype)


def _rounded_to_odd(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x * y + z, of float64 with so few digits that products are exact."""
    return _to_odd(*_two_sum(x * y, z))


def _two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounded sum and its error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product_error(x: torch.Tensor, y: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    """x * y - product, exactly (Veltkamp and Dekker)."""
    (a, b), (c, d) = ((h := v * 134217729.0 - (v * 134217729.0 - v), v - h) for v in (x, y))
    return b * d - (((product - a * c) - b * c) - a * d)


def _to_odd(total: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """A sum and its error as one number, rounded to odd, so that a later rounding to fewer bits is correct."""
    even = (total.view(torch.int64 if total.dtype == torch.float64 else torch.int32) & 1) == 0
    toward = torch.nextafter(total, torch.where(error > 0, torch.inf, -torch.inf).to(total.dtype))
    inexact = (error != 0) & torch.isfinite(error) & torch.isfinite(total)
    return torch.where(inexact & even, toward, total)


def _fused_slowly(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """With exact fractions, for numbers whose parts would overflow or underflow."""
    results = (x * y + z).expand(where.shape).clone()
    columns = [v.expand(where.shape)[where].tolist() for v in (x, y, z)]
    values = results[where].tolist()
    for at, (a, b, c) in enumerate(zip(*columns, strict=True)):
        if math.isfinite(a) and math.isfinite(b) and math.isfinite(c):
            exact = Fraction(a) * Fraction(b) + Fraction(c)
            try:
                values[at] = float(exact) if exact else values[at]
            except OverflowError:
                values[at] = math.inf if exact > 0 else -math.inf
        elif math.isfinite(a) and math.isfinite(b):
            values[at] = c
    results[where] = torch.tensor(values, dtype=results.dtype)
    return results
