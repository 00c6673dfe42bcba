"""Pointwise operations: one expression per element. A new one is a line in the tables below."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from evo_kernel.tasks.lowering.extremes import LARGER, SMALLER, Extreme
from evo_kernel.tasks.lowering.frames import FrameRead, write_map
from evo_kernel.tasks.lowering.layout import LoweredValue
from evo_kernel.tasks.lowering.module import TL_TYPES, LoweredModule, tl_type
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)

LOG2_10 = math.log(10, 2)


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """What a kernel computes in: float32 for half types, as eager PyTorch does."""
    return torch.float32 if dtype in HALF else dtype


def literal(value: Any, dtype: torch.dtype) -> str:
    """A number as it stands in a kernel that computes in `dtype`."""
    if dtype == torch.bool:
        return "True" if value else "False"
    if not dtype.is_floating_point:
        return str(int(value))
    number = float(value)
    return repr(number) if math.isfinite(number) else f'float("{number}")'


TANH = (
    "square = {0} * {0}",
    "decay = tl.exp(-2.0 * tl.abs({0}))",
    "far = tl.where({0} < 0, decay - 1.0, 1.0 - decay) / (1.0 + decay)",
    "series = -0.05396825396825397 + square * 0.021869488536155203",
    "near = {0} * (1.0 + square * (-0.3333333333333333 + square * (0.13333333333333333 + square * series)))",
    "tl.where(tl.abs({0}) < 0.3, near, far)",
)
EXPM1 = (
    "series = {0} / 2 * (1.0 + {0} / 3 * (1.0 + {0} / 4 * (1.0 + {0} / 5 * (1.0 + {0} / 6))))",
    "tl.where(tl.abs({0}) < 0.25, {0} * (1.0 + series), tl.exp({0}) - 1.0)",
)
LOG1P = (
    "above = 1.0 + {0}",
    "tl.where(above == 1.0, {0}, tl.where(above == float('inf'), {0}, tl.log(above) * ({0} / (above - 1.0))))",
)
ROUND = (
    "floor = tl.floor({0})",
    "rest = {0} - floor",
    "odd = floor - 2.0 * tl.floor(floor * 0.5)",
    "tl.where((rest > 0.5) | ((rest == 0.5) & (odd == 1.0)), floor + 1.0, floor)",
)

Table = Mapping[Any, tuple[str, tuple[str, ...]]]
"""Operation → name of its kernel, and statements with, last, the expression; {i} stands for operand i."""


def _alike(text: str, names: str) -> dict[Any, tuple[str, tuple[str, ...]]]:
    """Operations of one form, by their names."""
    return {getattr(aten, name): (name, (text.replace("NAME", name),)) for name in names.split()}


def _signs(**signs: str) -> dict[Any, tuple[str, tuple[str, ...]]]:
    """Operations with a sign of their own between two operands."""
    return {getattr(aten, name): (name, (f"{{0}} {sign} {{1}}",)) for name, sign in signs.items()}


_RENAMED = {
    "erfcx": aten.special_erfcx, "cyl_bessel_i0": aten.i0, "cyl_bessel_i1": aten.special_i1,
    "j0": aten.special_bessel_j0, "j1": aten.special_bessel_j1,
    "y0": aten.special_bessel_y0, "y1": aten.special_bessel_y1,
}  # fmt: skip
"""Function of CUDA's math library → operation."""

# Results are floating point; integers are computed in float32.
FLOAT_OPS: Table = {
    **_alike("tl.NAME({0})", "exp exp2 log log2 sqrt rsqrt sin cos sigmoid erf"),
    **_alike(  # by CUDA's math library
        "tl.extra.cuda.libdevice.NAME({0})", "acos acosh asin asinh atan atanh lgamma erfinv"
    ),
    **_alike("tl.extra.cuda.libdevice.NAME({0}, {1})", "atan2 hypot"),
    **{operation: (name, (f"tl.extra.cuda.libdevice.{name}({{0}})",)) for name, operation in _RENAMED.items()},
    aten.expm1: ("expm1", EXPM1),
    aten.log10: ("log10", (f"tl.log2({{0}}) * {1 / LOG2_10!r}",)),
    aten.log1p: ("log1p", LOG1P),
    aten.reciprocal: ("reciprocal", ("1.0 / {0}",)),
    aten.tan: ("tan", ("tl.sin({0}) / tl.cos({0})",)),
    aten.tanh: ("tanh", TANH),
    aten.sinh: ("sinh", ("0.5 * (tl.exp({0}) - tl.exp(-{0}))",)),
    aten.cosh: ("cosh", ("0.5 * (tl.exp({0}) + tl.exp(-{0}))",)),
    aten.erfc: ("erfc", ("1.0 - tl.erf({0})",)),
    aten.silu: ("silu", ("{0} * tl.sigmoid({0})",)),
}
# Results have the promoted dtype of the operands.
SAME_OPS: Table = {
    **_signs(mul="*"),
    aten.neg: ("neg", ("-{0}",)),
    aten.abs: ("abs", ("tl.abs({0})",)),
    aten.square: ("square", ("{0} * {0}",)),
    aten.fmax: ("fmax", ("tl.maximum({0}, {1})",)),
    aten.fmin: ("fmin", ("tl.minimum({0}, {1})",)),
    aten.sign: ("sign", ("tl.where({0} > 0, 1, 0) - tl.where({0} < 0, 1, 0)",)),
    aten.copysign: ("copysign", ("tl.where({1} < 0, -tl.abs({0}), tl.abs({0}))",)),
    aten.fmod: ("fmod", ("times = {0} / {1}", "{0} - tl.where(times < 0, tl.ceil(times), tl.floor(times)) * {1}")),
    aten.lift_fresh_copy: ("copy", ("{0}",)),
}
ROUNDING_OPS: Table = {
    **_alike("tl.NAME({0})", "floor ceil"),
    aten.trunc: ("trunc", ("tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))",)),
    aten.round: ("round", ROUND),
}
COMPARE_OPS: Table = {
    **_signs(eq="==", ne="!=", lt="<", le="<=", gt=">", ge=">="),
    aten.isnan: ("isnan", ("{0} != {0}",)),
    aten.isinf: ("isinf", ("tl.abs({0}) == float('inf')",)),
}
LOGIC_OPS: Table = {
    **_signs(logical_and="&", logical_or="|", logical_xor="!="),
    aten.logical_not: ("logical_not", ("{0} == 0",)),
}
BIT_OPS: Table = _signs(
    bitwise_and="&", bitwise_or="|", bitwise_xor="^", bitwise_left_shift="<<", bitwise_right_shift=">>",
    __lshift__="<<", __rshift__=">>",
)  # fmt: skip


@dataclass(frozen=True)
class PointwiseJob:
    """A pointwise node: its kernel's name, operands (values, numbers, size expressions), dtype and expression."""

    name: str
    operands: tuple[Any, ...]
    types: tuple[torch.dtype, ...]  # in which each operand is computed with
    lines: tuple[str, ...]  # statements and, last, the expression; {i} stands for operand i


def write(module: LoweredModule, node: AtenNode, job: PointwiseJob) -> LoweredValue:
    """Write the kernel of a job; its result has the node's shape, dtype and memory order."""
    if module.inline is not None:
        return module.inline(node, job)
    fake = node.result
    reads: list[FrameRead] = []
    scalars: list[str] = []
    slots: list[tuple[str, Any]] = []
    for operand, dtype in zip(job.operands, job.types, strict=True):
        if isinstance(operand, LoweredValue) and operand.fill is None:
            slots.append(("read", len(reads)))
            reads.append(FrameRead(operand, dtype))
        elif isinstance(operand, sympy.Expr) and not operand.is_number:
            slots.append(("scalar", len(scalars)))
            scalars.append(module.size(operand))
        else:
            number = operand.fill if isinstance(operand, LoweredValue) else operand
            slots.append(("literal", literal(number, dtype)))

    def compute(names: list[str]) -> tuple[list[str], str]:
        texts = []
        for kind, what in slots:
            texts.append(what if kind == "literal" else names[what if kind == "read" else len(reads) + what])
        return [line.format(*texts) for line in job.lines[:-1]], job.lines[-1].format(*texts)

    return write_map(module, job.name, reads, scalars, compute, module.empty(node.name, fake), fake)


def promoted(node: AtenNode, operands: tuple[Any, ...]) -> torch.dtype:
    """The dtype that PyTorch compares these operands in."""
    stand_ins = []
    for argument, operand in zip(node.fx.args, operands, strict=False):
        if isinstance(operand, LoweredValue):
            stand_ins.append(argument.meta["val"])  # type: ignore[union-attr]
        else:
            is_float = isinstance(operand, float) or (isinstance(operand, sympy.Expr) and not operand.is_integer)
            stand_ins.append(1.0 if is_float else operand if isinstance(operand, bool) else 1)
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return elementwise_dtypes(*stand_ins, type_promotion_kind=kind)[0]


def operands_of(node: AtenNode, count: int) -> tuple[Any, ...]:
    return tuple(node.argument(index) for index in range(count))


def result_job(node: AtenNode, name: str, operands: tuple[Any, ...], lines: tuple[str, ...]) -> PointwiseJob:
    """Operands and result in the (widened) dtype of the result; booleans are computed as integers."""
    dtype = compute_type(node.result.dtype)
    if dtype == torch.bool:
        dtype, lines = torch.int32, (*lines[:-1], f"({lines[-1]}) != 0")
    return PointwiseJob(name, operands, (dtype,) * len(operands), lines)


def _register(table: Table, job: Callable[..., PointwiseJob]) -> None:
    for operation, (name, lines) in table.items():

        def lower(
            module: LoweredModule, node: AtenNode, name: str = name, lines: tuple[str, ...] = lines
        ) -> LoweredValue:
            count = 2 if any("{1}" in line for line in lines) else 1
            return write(module, node, job(node, name, operands_of(node, count), lines))

        lowers(operation)(lower)


def _all_in(dtype_of: Callable[[AtenNode, tuple[Any, ...]], torch.dtype]) -> Callable[..., PointwiseJob]:
    return lambda node, name, operands, lines: PointwiseJob(
        name, operands, (dtype_of(node, operands),) * len(operands), lines
    )


def _logic_job(node: AtenNode, name: str, operands: tuple[Any, ...], lines: tuple[str, ...]) -> PointwiseJob:
    """Operands that are no booleans are first asked whether they are zero."""
    types = tuple(o.dtype if isinstance(o, LoweredValue) else torch.bool for o in operands)
    asked = [
        f"({{{i}}} != 0)" if isinstance(o, LoweredValue) and o.dtype != torch.bool and o.fill is None else f"{{{i}}}"
        for i, o in enumerate(operands)
    ]
    return PointwiseJob(name, operands, types, tuple(line.format(*asked) for line in lines))


def _rounding_job(node: AtenNode, name: str, operands: tuple[Any, ...], lines: tuple[str, ...]) -> PointwiseJob:
    if not node.result.dtype.is_floating_point:
        return PointwiseJob("copy", operands[:1], (node.result.dtype,), ("{0}",))
    if name == "round" and node.argument(1, "decimals", 0):
        raise NotLowered("only decimals=0 is supported")
    return result_job(node, name, operands[:1], lines)


_register(FLOAT_OPS, result_job)
_register(SAME_OPS, result_job)
_register(ROUNDING_OPS, _rounding_job)
_register(COMPARE_OPS, _all_in(promoted))
_register(LOGIC_OPS, _logic_job)
_register(BIT_OPS, _all_in(lambda node, operands: node.result.dtype))


def _extreme(module: LoweredModule, node: AtenNode, name: str, operands: tuple[Any, ...], one: Extreme) -> LoweredValue:
    text = one.of("{0}", "{1}", compute_type(node.result.dtype))
    return write(module, node, result_job(node, name, operands, (text,)))


@lowers(aten.relu)
def relu(module: LoweredModule, node: AtenNode) -> LoweredValue:
    return _extreme(module, node, "relu", (node.argument(0), 0), LARGER)


@lowers(aten.maximum, aten.clamp_min)
def maximum(module: LoweredModule, node: AtenNode) -> LoweredValue:
    return _extreme(module, node, node.operation.removeprefix("aten."), operands_of(node, 2), LARGER)


@lowers(aten.minimum, aten.clamp_max)
def minimum(module: LoweredModule, node: AtenNode) -> LoweredValue:
    return _extreme(module, node, node.operation.removeprefix("aten."), operands_of(node, 2), SMALLER)


@lowers(aten.signbit)
def signbit(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """The bit itself where there is one: minus zero has it."""
    source = node.value(0).dtype
    if not source.is_floating_point:
        return write(module, node, PointwiseJob("signbit", operands_of(node, 1), (source,), ("{0} < 0",)))
    if source == torch.float64:
        raise NotLowered("the sign bit of float64")
    line = "{0}.to(tl.int32, bitcast=True) < 0"
    return write(module, node, PointwiseJob("signbit", operands_of(node, 1), (torch.float32,), (line,)))


@lowers(aten.bitwise_not)
def bitwise_not(module: LoweredModule, node: AtenNode) -> LoweredValue:
    dtype = node.result.dtype
    line = "{0} == 0" if dtype == torch.bool else "~{0}"
    return write(module, node, PointwiseJob("bitwise_not", operands_of(node, 1), (dtype,), (line,)))


@lowers(aten.add, aten.sub, aten.rsub)
def add(module: LoweredModule, node: AtenNode) -> LoweredValue:
    alpha = node.argument(2, "alpha", 1)
    name = {"aten.add": "add", "aten.sub": "sub"}.get(node.operation, "rsub")
    sign = "+" if name == "add" else "-"
    first, second = ("{1}", "{0}") if name == "rsub" else ("{0}", "{1}")
    if alpha != 1:
        scale = literal(alpha, compute_type(node.result.dtype))
        second = f"{second} * {scale}"
    return write(module, node, result_job(node, name, operands_of(node, 2), (f"{first} {sign} {second}",)))


INT_REMAINDER = (
    "quotient = {0} // {1}",
    "rest = {0} - quotient * {1}",
    "rest = tl.where((rest != 0) & ((rest < 0) != ({1} < 0)), rest + {1}, rest)",
)
"""Remainder with the sign of the divisor, whichever way `//` rounds."""


@lowers(aten.div, aten.true_divide, aten.floor_divide)
def div(module: LoweredModule, node: AtenNode) -> LoweredValue:
    mode = "floor" if node.operation == "aten.floor_divide" else node.raw(2, "rounding_mode")
    floating = node.result.dtype.is_floating_point
    if mode is None:
        lines: tuple[str, ...] = ("{0} / {1}",)
    elif mode == "floor":
        lines = ("tl.floor({0} / {1})",) if floating else (*INT_REMAINDER, "({0} - rest) // {1}")
    elif floating:
        lines = ("quotient = {0} / {1}", "tl.where(quotient < 0, tl.ceil(quotient), tl.floor(quotient))")
    else:
        raise NotLowered("integer division that rounds towards zero")
    return write(module, node, result_job(node, f"{mode}_div" if mode else "div", operands_of(node, 2), lines))


@lowers(aten.remainder)
def remainder(module: LoweredModule, node: AtenNode) -> LoweredValue:
    floating = node.result.dtype.is_floating_point
    lines = ("{0} - tl.floor({0} / {1}) * {1}",) if floating else (*INT_REMAINDER, "rest")
    return write(module, node, result_job(node, "remainder", operands_of(node, 2), lines))


@lowers(aten._to_copy, torch.ops.prims.convert_element_type, aten.clone, aten.copy)
def cast(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """Casts and copies: the result's dtype and memory order decide."""
    source = node.value(1 if node.operation == "aten.copy" else 0)
    target = node.result.dtype
    if target not in TL_TYPES or source.dtype not in TL_TYPES:
        raise NotLowered(f"a cast from {source.dtype} to {target}")
    if source.dtype == target:
        return write(module, node, PointwiseJob("copy", (source,), (target,), ("{0}",)))
    expression = "{0} != 0" if target == torch.bool else f"{{0}}.to({tl_type(target)})"
    name = f"to_{str(target).removeprefix('torch.')}"
    if source.fill is not None:
        fill = float(source.fill) if target.is_floating_point else source.fill
        return LoweredValue.of(node.name, node.result, fill=bool(fill) if target == torch.bool else fill)
    return write(module, node, PointwiseJob(name, (source,), (source.dtype,), (expression,)))
