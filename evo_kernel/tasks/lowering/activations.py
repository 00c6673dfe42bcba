"""Pointwise operations with parameters: activations, powers, clamps and selections."""

from __future__ import annotations

import math

import torch

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


@lowers(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def where(module: LoweredModule, node: AtenNode) -> LoweredValue:
    dtype = compute_type(node.result.dtype)
    operands = operands_of(node, 3)
    return write(
        module, node, PointwiseJob("where", operands, (torch.bool, dtype, dtype), ("tl.where({0}, {1}, {2})",))
    )


@lowers(aten.masked_fill)
def masked_fill(module: LoweredModule, node: AtenNode) -> LoweredValue:
    x, mask, value = operands_of(node, 3)
    dtype = compute_type(node.result.dtype)
    job = PointwiseJob("masked_fill", (mask, value, x), (torch.bool, dtype, dtype), ("tl.where({0}, {1}, {2})",))
    return write(module, node, job)


@lowers(aten.clamp, aten.hardtanh)
def clamp(module: LoweredModule, node: AtenNode) -> LoweredValue:
    hard = node.operation == "aten.hardtanh"
    low, high = node.argument(1, "min" if not hard else "min_val"), node.argument(2, "max" if not hard else "max_val")
    if hard:
        low, high = (-1 if low is None else low), (1 if high is None else high)
    expression, operands = "{0}", [node.argument(0)]
    if low is not None:
        operands.append(low)
        expression = f"tl.maximum({expression}, {{{len(operands) - 1}}})"
    if high is not None:
        operands.append(high)
        expression = f"tl.minimum({expression}, {{{len(operands) - 1}}})"
    return write(module, node, result_job(node, "clamp", tuple(operands), (expression,)))


@lowers(aten.gelu)
def gelu(module: LoweredModule, node: AtenNode) -> LoweredValue:
    if node.raw(1, "approximate", "none") == "tanh":
        inner = f"{math.sqrt(2 / math.pi)!r} * ({{0}} + 0.044715 * {{0}} * {{0}} * {{0}})"
        lines: tuple[str, ...] = (f"inner = {inner}", "{0} * tl.sigmoid(2.0 * inner)")
        return write(module, node, result_job(node, "gelu_tanh", operands_of(node, 1), lines))
    lines = (f"0.5 * {{0}} * (1.0 + tl.erf({{0}} * {math.sqrt(0.5)!r}))",)
    return write(module, node, result_job(node, "gelu", operands_of(node, 1), lines))


@lowers(aten.leaky_relu)
def leaky_relu(module: LoweredModule, node: AtenNode) -> LoweredValue:
    slope = literal(node.argument(1, "negative_slope", 0.01), torch.float32)
    lines = (f"tl.where({{0}} > 0, {{0}}, {{0}} * {slope})",)
    return write(module, node, result_job(node, "leaky_relu", operands_of(node, 1), lines))


@lowers(aten.elu)
def elu(module: LoweredModule, node: AtenNode) -> LoweredValue:
    alpha, scale, input_scale = (
        literal(node.argument(i, name, 1), torch.float32)
        for i, name in ((1, "alpha"), (2, "scale"), (3, "input_scale"))
    )
    lines = [line.format("low") for line in EXPM1]
    lines = ["low = {0} * " + input_scale, *lines[:-1], "curve = " + lines[-1]]
    lines.append(f"tl.where({{0}} > 0, {{0}}, curve * {alpha}) * {scale}")
    return write(module, node, result_job(node, "elu", operands_of(node, 1), tuple(lines)))


@lowers(aten.softplus)
def softplus(module: LoweredModule, node: AtenNode) -> LoweredValue:
    beta = literal(node.argument(1, "beta", 1), torch.float32)
    threshold = literal(node.argument(2, "threshold", 20), torch.float32)
    body = [line.format("power") for line in LOG1P]
    lines = (f"scaled = {{0}} * {beta}", "power = tl.exp(tl.minimum(scaled, 80.0))", *body[:-1])
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
