"""Operations on whole rows, several passes each: softmax, layer norm, running sums and products."""

from __future__ import annotations

import torch

from evo_kernel.tasks.lowering.frames import RowFrame, lanes
from evo_kernel.tasks.lowering.layout import LoweredValue, align
from evo_kernel.tasks.lowering.module import LoweredModule
from evo_kernel.tasks.lowering.pointwise import compute_type
from evo_kernel.tasks.lowering.reduction import write_mean
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers
from evo_kernel.tasks.lowering.views import materialise

aten = torch.ops.aten
LEAST = 'float("-inf")'


@lowers(aten._softmax, aten._log_softmax)
def softmax(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """Three passes over each row: the largest, the sum of exponentials, the result."""
    source = materialise(module, node.value(0))
    dim = node.integer(1) % max(len(source.shape), 1)
    name = node.operation.removeprefix("aten._")
    out = module.empty(node.name, node.result)
    y = align("y", out, source.shape)
    rows = RowFrame(module, name, source, [dim], (y,), compute_type(source.dtype))
    rows.say(f"largest = {lanes(rows.dtype, LEAST)}")
    rows.loop("largest = tl.maximum(largest, x)", other=LEAST)
    rows.say("row_max = tl.max(largest, axis=0)", f"total = {lanes(rows.dtype)}")
    rows.loop("total += tl.exp(x - row_max)", other=LEAST)
    if name == "log_softmax":
        rows.say("row_log = tl.log(tl.sum(total, axis=0))")
        result = "y = x - row_max - row_log"
    else:
        rows.say("row_sum = tl.sum(total, axis=0)")
        result = "y = tl.exp(x - row_max) / row_sum"
    rows.loop(result, other=LEAST, put=y)
    rows.launch()
    return out


@lowers(aten.native_layer_norm)
def layer_norm(module: LoweredModule, node: AtenNode) -> tuple[LoweredValue | None, ...]:
    """Three passes over each row: the mean, the squares around it, the result."""
    if any(user.args[1] != 0 and user.users for user in node.fx.users):
        raise NotLowered("its mean and rstd as outputs")
    source, weight, bias = materialise(module, node.value(0)), node.argument(2), node.argument(3)
    rank = len(source.shape)
    out = module.empty(node.name, node.result[0])
    y = align("y", out, source.shape)
    extra = [align(n, materialise(module, v), source.shape) for n, v in (("weight", weight), ("bias", bias)) if v]
    reduced = range(rank - len(node.argument(1)), rank)
    rows = RowFrame(module, "layer_norm", source, reduced, (*extra, y), compute_type(source.dtype))
    write_mean(rows)
    rows.say(f"scale = tl.rsqrt(tl.sum(squares, axis=0) / {rows.n} + {float(node.argument(4))!r})")
    result = "(x - mean) * scale" + (" * weight" if weight else "") + (" + bias" if bias else "")
    rows.loop(f"y = {result}", more=extra, put=y)
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
    y = align("y", out, source.shape)
    name = node.operation.removeprefix("aten.")
    step, start = ("*", "1") if name == "cumprod" else ("+", "0")
    rows = RowFrame(module, f"row_{name}", source, [dim], (y,), compute_type(node.result.dtype))
    rows.say(f"carry = tl.max({lanes(rows.dtype, start)}, axis=0)")
    rows.loop(
        f"y = tl.{name}(x, axis=0) {step} carry",
        "carry = tl.sum(tl.where(cols == BLOCK - 1, y, 0), axis=0)",
        other=start,
        put=y,
    )
    rows.launch()
    return out
