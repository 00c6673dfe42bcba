"""Convolution as one tiled product over patches; what is not of a picture or a row is in volumes.py."""

from __future__ import annotations

from typing import Any, cast

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from evo_kernel.tasks.lowering.layout import Value
from evo_kernel.tasks.lowering.module import Kernel, Module
from evo_kernel.tasks.lowering.registry import Node, NotLowered, lowers
from evo_kernel.tasks.lowering.trace import Expr
from evo_kernel.tasks.lowering.views import materialise
from evo_kernel.tasks.lowering.volumes import volume_convolution

aten = torch.ops.aten

CONVOLUTION = """\
    pixels = {program_0} * BLOCK_M + tl.arange(0, BLOCK_M)
    channels = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    group = tl.program_id(2)
    image = pixels // (out_h * out_w)
    out_row = (pixels // out_w) % out_h
    out_col = pixels % out_w
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    depth = in_channels * kernel_h * kernel_w
    for start in range(0, depth, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        channel = inner // (kernel_h * kernel_w)
        row = out_row[:, None] * {stride_h} - {pad_h} + (((inner // kernel_w) % kernel_h) * {dilation_h})[None, :]
        col = out_col[:, None] * {stride_w} - {pad_w} + ((inner % kernel_w) * {dilation_w})[None, :]
        inside = (row >= 0) & (row < in_h) & (col >= 0) & (col < in_w)
        inside = inside & (pixels < n_pixels)[:, None] & (inner < depth)[None, :]
        x_at = x_ptr + image[:, None] * x_stride_n + (group * in_channels + channel)[None, :] * x_stride_c
        x = tl.load(x_at + row * x_stride_h + col * x_stride_w, mask=inside, other=0.0)
        w_at = w_ptr + (group * out_channels + channels)[None, :] * depth + inner[:, None]
        w = tl.load(w_at, mask=(inner < depth)[:, None] & (channels < out_channels)[None, :], other=0.0)
        acc = tl.dot(x, w, acc{precision})
{bias}    y_at = y_ptr + image[:, None] * y_stride_n + (group * out_channels + channels)[None, :] * y_stride_c
    y_at = y_at + (out_row * y_stride_h + out_col * y_stride_w)[:, None]
    tl.store(y_at, acc, mask=(pixels < n_pixels)[:, None] & (channels < out_channels)[None, :])"""

BIAS = """\
    bias = tl.load(bias_ptr + group * out_channels + channels, mask=channels < out_channels, other=0.0)
    acc = acc + bias.to(tl.float32)[None, :]
"""


@lowers(aten.convolution)
def convolution(module: Module, node: Node) -> Value:
    """An implicit matrix product: pixels x (channels in x window) x channels out, per group. One and two dimensions."""
    x, w, bias = node.value(0), node.value(1), node.argument(2)
    stride, padding, dilation, transposed, _, groups = (node.argument(index) for index in range(3, 9))
    if transposed or len(x.shape) not in (3, 4):
        return volume_convolution(module, node)
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16) or not w.contiguous:
        raise NotLowered("a convolution of this dtype or memory format")
    out = module.empty(node.name, node.result)
    stride, padding, dilation = (
        _pair(values, default) for values, default in ((stride, 1), (padding, 0), (dilation, 1))
    )
    x, w, y = (_as_2d(module, materialise(module, value)) for value in (x, w, out))
    kernel = Kernel("convolution" + ("_bias" if bias is not None else ""), module)
    for param, value in (("x", x), ("w", w), *((("bias", bias),) if bias is not None else ()), ("y", y)):
        kernel.pointer(param, value.name)
    n_pixels = y.shape[0] * y.shape[2] * y.shape[3]
    out_channels = cast(Expr, FloorDiv(w.shape[0], sympy.Integer(groups)))
    sizes = {
        "n_pixels": n_pixels, "in_channels": w.shape[1], "out_channels": out_channels, "in_h": x.shape[2],
        "in_w": x.shape[3], "out_h": y.shape[2], "out_w": y.shape[3], "kernel_h": w.shape[2], "kernel_w": w.shape[3],
    }  # fmt: skip
    for param, size in sizes.items():
        kernel.size(param, size)
    for value, param in ((x, "x"), (y, "y")):
        for dim, letter in enumerate("nchw"):
            kernel.scalar(f"{param}_stride_{letter}", f"{value.name}.stride({dim})")
    depth = w.shape[1] * w.shape[2] * w.shape[3]
    kernel.knobs |= {
        "BLOCK_M": module.block(n_pixels, most=64),
        "BLOCK_N": module.block(out_channels, most=64),
        "BLOCK_K": module.block(depth, most=32),
    }
    numbers = dict(zip(("stride_h", "stride_w", "pad_h", "pad_w"), (*stride, *padding), strict=True))
    numbers |= {"dilation_h": dilation[0], "dilation_w": dilation[1]}
    precision = f', input_precision="{module.precision}"' if x.dtype == torch.float32 else ""
    text = CONVOLUTION.format(
        **numbers, precision=precision, program_0=module.program(0), bias=BIAS if bias is not None else ""
    )
    kernel.body += text.split("\n")
    grid = f"triton.cdiv({module.size(n_pixels)}, {{BLOCK_M}}), triton.cdiv({module.size(out_channels)}, {{BLOCK_N}})"
    module.launch(kernel, f"({grid}, {groups})")
    return out


def _pair(values: list[Any], default: int) -> tuple[int, int]:
    """Two numbers for two dimensions; one dimension is the last, beside one that stays put."""
    if any(not isinstance(value, int) for value in values):
        raise NotLowered("strides that vary with the case")
    return (default, values[0]) if len(values) == 1 else (values[0], values[1])


def _as_2d(module: Module, value: Value) -> Value:
    if len(value.shape) == 4:
        return value
    name = module.fresh(f"{value.name}_2d")
    module.line(f"{name} = {value.name}.unsqueeze(2)")
    one, zero = sympy.Integer(1), sympy.Integer(0)
    shape = (value.shape[0], value.shape[1], one, value.shape[2])
    return Value(name, shape, (*value.strides[:2], zero, value.strides[2]), value.dtype)
