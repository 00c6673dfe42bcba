"""Convolution in three dimensions, and transposed convolution in one to three, as one tiled product over patches.

A transposed convolution gathers: an output at `o` takes from input `i` through tap `k` where o = i·stride - padding +
k·dilation. So no program writes where another does; the taps that meet no input are masked, and wasted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from evo_kernel.tasks.lowering.layout import Value, product
from evo_kernel.tasks.lowering.module import Kernel, Module
from evo_kernel.tasks.lowering.registry import Node, NotLowered
from evo_kernel.tasks.lowering.trace import Expr
from evo_kernel.tasks.lowering.views import materialise

BIAS = """\
    bias = tl.load(bias_ptr + group * out_channels + channels, mask=channels < out_channels, other=0.0)
    acc = acc + bias.to(tl.float32)[None, :]
"""

HEAD = """\
    pixels = {program_0} * BLOCK_M + tl.arange(0, BLOCK_M)
    channels = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    group = tl.program_id(2)
    rest = pixels
{outputs}    image = rest
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    depth = in_channels * window
    for start in range(0, depth, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        channel = inner // window
        tap = inner % window
        taps = tap
        inside = (pixels < n_pixels)[:, None] & (inner < depth)[None, :]
        x_at = x_ptr + image[:, None] * x_stride_n + (group * in_channels + channel)[None, :] * x_stride_c
{inputs}        x = tl.load(x_at, mask=inside, other=0.0)
        w_at = w_ptr + {weights}
        w = tl.load(w_at, mask=(inner < depth)[:, None] & (channels < out_channels)[None, :], other=0.0)
        acc = tl.dot(x, w, acc{precision})
{bias}    y_at = y_ptr + image[:, None] * y_stride_n + (group * out_channels + channels)[None, :] * y_stride_c
    y_at = y_at + ({places})[:, None]
    tl.store(y_at, acc, mask=(pixels < n_pixels)[:, None] & (channels < out_channels)[None, :])"""

WEIGHTS = {
    False: "(group * out_channels + channels)[None, :] * depth + inner[:, None]",
    True: "(((group * in_channels + channel) * out_channels) * window + tap)[:, None] + (channels * window)[None, :]",
}


def volume_convolution(module: Module, node: Node) -> Value:
    """`aten.convolution` where a picture's kernel does not do."""
    x, w, bias = node.value(0), node.value(1), node.argument(2)
    stride, padding, dilation, transposed, _, groups = (node.argument(index) for index in range(3, 9))
    rank = len(x.shape) - 2
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16) or not w.contiguous or rank not in (1, 2, 3):
        raise NotLowered("a convolution of this dtype, rank or memory format")
    strides, paddings, dilations = (_numbers(values, rank) for values in (stride, padding, dilation))
    y = module.empty(node.name, node.result)
    x, w = materialise(module, x), materialise(module, w)
    kernel = Kernel(("transposed_convolution" if transposed else "convolution_3d") + ("_bias" if bias else ""), module)
    for param, value in (("x", x), ("w", w), *((("bias", bias),) if bias is not None else ()), ("y", y)):
        kernel.pointer(param, value.name)
    pixels = cast(Expr, y.shape[0] * product(y.shape[2:]))
    grouped = w.shape[0] if not transposed else x.shape[1]
    per_group = cast(Expr, FloorDiv(grouped, sympy.Integer(groups)))
    channels, out_channels = (per_group, w.shape[1]) if transposed else (w.shape[1], per_group)
    window = cast(Expr, product(w.shape[2:]))
    letters = "dhw"[3 - rank :]
    sizes = {"n_pixels": pixels, "in_channels": channels, "out_channels": out_channels, "window": window}
    for prefix, value in (("in", x), ("out", y), ("window", w)):
        sizes |= {f"{prefix}_{letter}": value.shape[2 + dim] for dim, letter in enumerate(letters)}
    for param, size in sizes.items():
        kernel.size(param, size)
    for value, param in ((x, "x"), (y, "y")):
        for dim, letter in enumerate(f"nc{letters}"):
            kernel.scalar(f"{param}_stride_{letter}", f"{value.name}.stride({dim})")
    kernel.knobs |= {
        "BLOCK_M": module.block(pixels, most=64),
        "BLOCK_N": module.block(out_channels, most=64),
        "BLOCK_K": module.block(channels * window, most=32),
    }
    kernel.body += HEAD.format(
        program_0=module.program(0),
        outputs="".join(f"    out_at_{a} = rest % out_{a}\n    rest = rest // out_{a}\n" for a in reversed(letters)),
        inputs="".join(_input_lines(letters, strides, paddings, dilations, transposed)),
        weights=WEIGHTS[bool(transposed)],
        precision=f', input_precision="{module.precision}"' if x.dtype == torch.float32 else "",
        bias=BIAS if bias is not None else "",
        places=" + ".join(f"out_at_{a} * y_stride_{a}" for a in letters),
    ).split("\n")
    grid = f"triton.cdiv({module.size(pixels)}, {{BLOCK_M}}), triton.cdiv({module.size(out_channels)}, {{BLOCK_N}})"
    module.launch(kernel, f"({grid}, {groups})")
    return y


def _input_lines(
    letters: str, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool
) -> list[str]:
    """Where each tap reads, innermost dimension first: the taps are taken apart as they go."""
    lines = []
    for a, s, p, d in reversed(list(zip(letters, stride, padding, dilation, strict=True))):
        lines.append(f"        reach = ((taps % window_{a}) * {d})[None, :]\n        taps = taps // window_{a}\n")
        if transposed:
            lines.append(f"        at = out_at_{a}[:, None] + {p} - reach\n")
            if s > 1:
                lines.append(f"        inside = inside & (at % {s} == 0)\n")
            lines.append("        inside = inside & (at >= 0)\n")
            if s > 1:
                lines.append(f"        at = at // {s}\n")
            lines.append(f"        inside = inside & (at < in_{a})\n")
        else:
            lines.append(f"        at = out_at_{a}[:, None] * {s} - {p} + reach\n")
            lines.append(f"        inside = inside & (at >= 0) & (at < in_{a})\n")
        lines.append(f"        x_at = x_at + at * x_stride_{a}\n")
    return lines


def _numbers(values: list[Any], rank: int) -> list[int]:
    if any(not isinstance(value, int) for value in values):
        raise NotLowered("strides that vary with the case")
    return list(values) if len(values) == rank else list(values) * rank
