"""Pointwise operations with parameters: activations, powers, clamps and selections."""

from __future__ import annotations

import math

import torch

from evo_kernel.tasks.lowering.extremes import LARGER, SMALLER
from evo_kernel.tasks.lowering.layout import LoweredValue
from evo_kernel.tasks.lowering.module import LoweredModule
from evo_kernel.tasks.lowering.pointwise import (
    EXPM1,
    LOG1P,
    PointwiseJob,
    compute_type,
    literal,
    operands_of,
    result_job,
    write,
)
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers

aten = torch.ops.aten


@lowers(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.masked_fill)
def where(module: LoweredModule, node: AtenNode) -> LoweredValue:
    one, two, three = operands_of(node, 3)
    filled = node.operation == "aten.masked_fill"
    dtype = compute_type(node.result.dtype)
    name, operands = ("masked_fill", (two, three, one)) if filled else ("where", (one, two, three))
    return write(module, node, PointwiseJob(name, operands, (torch.bool, dtype, dtype), ("tl.where({0}, {1}, {2})",)))


def _literals(node: AtenNode, **defaults: float) -> list[str]:
    """What an operation takes after its operand, as it stands in a kernel."""
    given = enumerate(defaults.items(), 1)
    return [literal(node.argument(place, name, default), torch.float32) for place, (name, default) in given]


@lowers(aten.clamp, aten.hardtanh)
def clamp(module: LoweredModule, node: AtenNode) -> LoweredValue:
    hard = node.operation == "aten.hardtanh"
    low = node.argument(1, "min_val", -1) if hard else node.argument(1, "min")
    high = node.argument(2, "max_val", 1) if hard else node.argument(2, "max")
    lines, value, operands = list[str](), "{0}", [node.argument(0)]
    for name, extreme, bound in (("raised", LARGER, low), ("clamped", SMALLER, high)):
        if bound is not None:
            lines.append(f"{name} = {extreme.of(value, f'{{{len(operands)}}}', compute_type(node.result.dtype))}")
            operands.append(bound)
            value = name
    return write(module, node, result_job(node, "clamp", tuple(operands), (*lines, value)))


@lowers(aten.gelu)
def gelu(module: LoweredModule, node: AtenNode) -> LoweredValue:
    name, lines = "gelu", (f"0.5 * {{0}} * (1.0 + tl.erf({{0}} * {math.sqrt(0.5)!r}))",)
    if node.raw(1, "approximate", "none") == "tanh":
        twice = 2 * math.sqrt(2 / math.pi)  # 0.5 * (1 + tanh(u)) is the sigmoid of 2 u
        name, lines = (
            "gelu_tanh",
            (f"{{0}} * tl.sigmoid({{0}} * ({twice!r} + {0.044715 * twice!r} * ({{0}} * {{0}})))",),
        )
    return write(module, node, result_job(node, name, operands_of(node, 1), lines))


@lowers(aten.leaky_relu)
def leaky_relu(module: LoweredModule, node: AtenNode) -> LoweredValue:
    (slope,) = _literals(node, negative_slope=0.01)
    lines = (f"tl.where({{0}} > 0, {{0}}, {{0}} * {slope})",)
    return write(module, node, result_job(node, "leaky_relu", operands_of(node, 1), lines))


@lowers(aten.elu)
def elu(module: LoweredModule, node: AtenNode) -> LoweredValue:
    alpha, scale, input_scale = _literals(node, alpha=1, scale=1, input_scale=1)
    lines = [line.format("low") for line in EXPM1]
    lines = ["low = {0} * " + input_scale, *lines[:-1], "curve = " + lines[-1]]
    lines.append(f"tl.where({{0}} > 0, {{0}}, curve * {alpha}) * {scale}")
    return write(module, node, result_job(node, "elu", operands_of(node, 1), tuple(lines)))


@lowers(aten.softplus)
def softplus(module: LoweredModule, node: AtenNode) -> LoweredValue:
    beta, threshold = _literals(node, beta=1, threshold=20)
    body = [line.format("power") for line in LOG1P]
    low = SMALLER.of("scaled", "80.0", compute_type(node.result.dtype))
    lines = (f"scaled = {{0}} * {beta}", f"power = tl.exp({low})", *body[:-1])
    last = f"tl.where(scaled > {threshold}, {{0}}, {body[-1]} / {beta})"
    return write(module, node, result_job(node, "softplus", operands_of(node, 1), (*lines, last)))


POWERS = {
    0: "{0} * 0 + 1",
    1: "{0}",
    2: "{0} * {0}",
    3: "{0} * {0} * {0}",
    4: "({0} * {0}) * ({0} * {0})",
    0.5: "tl.sqrt({0})",
    -0.5: "tl.rsqrt({0})",
    -1: "1.0 / {0}",
    -2: "1.0 / ({0} * {0})",
}


@lowers(aten.pow)
def power(module: LoweredModule, node: AtenNode) -> LoweredValue:
    base, exponent = node.argument(0), node.argument(1)
    known = exponent.fill if isinstance(exponent, LoweredValue) else exponent
    if isinstance(known, int | float) and known in POWERS:
        tag = str(known).removesuffix(".0").replace("-", "minus_").replace(".", "_")
        name = {"2": "square", "0_5": "sqrt", "minus_0_5": "rsqrt"}.get(tag, f"pow_{tag}")
        return write(module, node, result_job(node, name, (base,), (POWERS[known],)))
    if not node.result.dtype.is_floating_point:
        raise NotLowered("integer powers other than 0 to 4")
    lines = (
        "size = tl.exp2({1} * tl.log2(tl.abs({0})))",
        "whole = tl.floor({1}) == {1}",
        "odd = whole & (tl.floor({1} * 0.5) * 2.0 != {1})",
        "signed = tl.where(odd, -size, tl.where(whole, size, float('nan')))",
        "tl.where({1} == 0.0, 1.0, tl.where({0} < 0.0, signed, size))",
    )
    if not isinstance(base, LoweredValue):  # a literal base: spell it as a value of the right type
        lines = ("base = {1} * 0.0 + {0}", *(line.replace("{0}", "base") for line in lines))
    return write(module, node, result_job(node, "pow", (base, exponent), lines))
