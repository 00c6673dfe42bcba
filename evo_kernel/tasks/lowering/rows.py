"""Operations on whole rows, several passes each: softmax, layer norm, running sums and products."""

from __future__ import annotations

import torch

from evo_kernel.tasks.lowering.frames import RowFrame
from evo_kernel.tasks.lowering.layout import LoweredValue, align
from evo_kernel.tasks.lowering.module import LoweredKernel, LoweredModule, tl_type
from evo_kernel.tasks.lowering.pointwise import compute_type
from evo_kernel.tasks.lowering.reduction import kept_dims, lanes
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers
from evo_kernel.tasks.lowering.views import materialise

aten = torch.ops.aten
LEAST = 'float("-inf")'


@lowers(aten._softmax, aten._log_softmax)
def softmax(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """Three passes over each row: the largest, the sum of exponentials, the result."""
    source = materialise(module, node.value(0))
    dim = node.integer(1) % max(len(source.shape), 1)
    logarithm = node.operation == "aten._log_softmax"
    out = module.empty(node.name, node.result)
    x, y = align("x", source, source.shape), align("y", out, source.shape)
    kernel = LoweredKernel("log_softmax" if logarithm else "softmax", module)
    rows = RowFrame(kernel, source.shape, kept_dims(source, [dim]), [dim], (x, y))
    dtype = compute_type(source.dtype)
    load = ("x", x, LEAST, f".to({tl_type(dtype)})" if dtype != source.dtype else "")
    kernel.body.append(f"    largest = {lanes(dtype, LEAST)}")
    rows.loop(["largest = tl.maximum(largest, x)"], [load])
    kernel.body.append("    row_max = tl.max(largest, axis=0)")
    kernel.body.append(f"    total = {lanes(dtype, '0')}")
    rows.loop(["total += tl.exp(x - row_max)"], [load])
    if logarithm:
        kernel.body.append("    row_log = tl.log(tl.sum(total, axis=0))")
        result = "y = x - row_max - row_log"
    else:
        kernel.body.append("    row_sum = tl.sum(total, axis=0)")
        result = "y = tl.exp(x - row_max) / row_sum"
    rows.loop([result, f"tl.store({rows.address(y)}, y, mask=mask)"], [load])
    rows.launch()
    return out


@lowers(aten.native_layer_norm)
def layer_norm(module: LoweredModule, node: AtenNode) -> tuple[LoweredValue | None, ...]:
    """Three passes over each row: the mean, the squares around it, the result."""
    if any(user.args[1] != 0 and user.users for user in node.fx.users):
        raise NotLowered("its mean and rstd as outputs")
    source, weight, bias = materialise(module, node.value(0)), node.argument(2), node.argument(3)
    rank = len(source.shape)
    reduced = list(range(rank - len(node.argument(1)), rank))
    out = module.empty(node.name, node.result[0])
    dtype = compute_type(source.dtype)
    x, y = align("x", source, source.shape), align("y", out, source.shape)
    extra = [(n, align(n, materialise(module, v), source.shape)) for n, v in (("weight", weight), ("bias", bias)) if v]
    rows = RowFrame(
        LoweredKernel("layer_norm", module),
        source.shape,
        kept_dims(source, reduced),
        reduced,
        (x, *(o for _, o in extra), y),
    )
    body, cast = rows.kernel.body, f".to({tl_type(dtype)})" if dtype != source.dtype else ""
    body.append(f"    total = {lanes(dtype, '0')}")
    rows.loop(["total += x"], [("x", x, "0", cast)])
    body += [f"    mean = tl.sum(total, axis=0) / {rows.n}", f"    squares = {lanes(dtype, '0')}"]
    rows.loop(["centred = tl.where(mask, x - mean, 0)", "squares += centred * centred"], [("x", x, "0", cast)])
    body.append(f"    scale = tl.rsqrt(tl.sum(squares, axis=0) / {rows.n} + {float(node.argument(4))!r})")
    result = "(x - mean) * scale" + (" * weight" if weight else "") + (" + bias" if bias else "")
    loads = [("x", x, "0", cast), *((n, o, "0", cast) for n, o in extra)]
    rows.loop([f"y = {result}", f"tl.store({rows.address(y)}, y, mask=mask)"], loads)
    rows.launch()
    return out, None, None


@lowers(aten.cumsum, aten.cumprod)
def cumsum(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """One program a row: each block is scanned, and carries its last element on to the next."""
    source = materialise(module, node.value(0))
    if not source.shape:
        raise NotLowered("a scan of a single number")
    dim = node.integer(1) % len(source.shape)
    out = module.empty(node.name, node.result)
    x, y = align("x", source, source.shape), align("y", out, source.shape)
    dtype = compute_type(node.result.dtype)
    times = node.operation == "aten.cumprod"
    scan, step, start = ("tl.cumprod", "*", "1") if times else ("tl.cumsum", "+", "0")
    kernel = LoweredKernel("row_cumprod" if times else "row_cumsum", module)
    rows = RowFrame(kernel, source.shape, kept_dims(source, [dim]), [dim], (x, y))
    kernel.body.append(f"    carry = tl.max({lanes(dtype, start)}, axis=0)")
    lines = [
        f"scanned = {scan}(x, axis=0) {step} carry",
        f"tl.store({rows.address(y)}, scanned, mask=mask)",
        "carry = tl.sum(tl.where(cols == BLOCK - 1, scanned, 0), axis=0)",
    ]
    rows.loop(lines, [("x", x, start, f".to({tl_type(dtype)})")])
    rows.launch()
    return out
