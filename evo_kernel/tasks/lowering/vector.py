"""A matrix times a vector: a sum for each row or column, in the time in which the matrix is read.

Tensor cores have at least eight columns: all but one would be zeros. From two columns on they pay, as what else is
read is read once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sympy
import torch

from evo_kernel.tasks.lowering.frames import PROCESSORS, tile_address
from evo_kernel.tasks.lowering.layout import LoweredValue, Operand, align
from evo_kernel.tasks.lowering.module import LoweredKernel, LoweredModule
from evo_kernel.tasks.lowering.pointwise import literal

RESIDENT = 4
"""Programs that a processor has at a time: with fewer, several take a share of each sum."""


def times_vector(
    module: LoweredModule, out: LoweredValue, a: LoweredValue, b: LoweredValue, bias: LoweredValue | None, alpha: Any,
    beta: Any,
) -> None:  # fmt: skip
    """out = alpha * a @ b (+ beta * bias), where b is one column or a one row; each may have one batch dimension."""
    x, y = align("x", a, a.shape), align("y", b, b.shape)
    kept = -2  # of the result
    if b.shape[-1] != 1:
        x, y, kept = _turned(replace(y, param="x")), _turned(replace(x, param="y")), -1
    m, k, batched = out.shape[kept], a.shape[-1], len(out.shape) == 3
    along = x.strides[-1] == 1 or x.strides[-2] != 1  # whether what lies next to each other is of one sum
    kernel = LoweredKernel(("batched_" if batched else "") + ("row_dot" if along else "col_dot"), module)
    block_m = module.block(m, most=4 if along else 128, least=1)
    block_k = module.block(k, most=1024 if along else 32)
    kernel.knobs |= {"BLOCK_M": block_m, "BLOCK_K": block_k}
    programs = -(-module.largest(m) // block_m) * (module.largest(out.shape[0]) if batched else 1)
    shares = max(1, min(RESIDENT * PROCESSORS // max(1, programs), module.largest(k) // (4 * block_k)))
    target = out
    if shares > 1:
        target = module.scratch(module.fresh("parts"), (sympy.Integer(shares), *out.shape), torch.float32)
    kernel.pointer("x", x.name)
    kernel.pointer("y", y.name)
    if bias is not None:
        kernel.pointer("bias", bias.name)
    kernel.pointer("out", target.name)
    kernel.size("m", m)
    kernel.size("k", k)

    x_at = tile_address(kernel, x, (-2, "rows[:, None]", "m"), (-1, "inner[None, :]", "k"))
    y_at = tile_address(kernel, y, (-2, "inner", "k"))
    kernel.body += [
        f"    rows = {module.program(0)} * BLOCK_M + tl.arange(0, BLOCK_M)",
        f"    share = {module.program(1)}",
        *([f"    batch = {module.program(2)}"] if batched else []),
        "    total = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)",
        "    for start in range(share * BLOCK_K, k, tl.num_programs(1) * BLOCK_K):",
        "        inner = start + tl.arange(0, BLOCK_K)",
        f"        x = tl.load({x_at}, mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)",
        f"        y = tl.load({y_at}, mask=inner < k, other=0.0)",
        "        total += x.to(tl.float32) * y.to(tl.float32)[None, :]",
        "    acc = tl.sum(total, axis=1)",
    ]
    if alpha != 1:
        kernel.body.append(f"    acc = acc * {literal(alpha, torch.float32)}")
    if bias is not None:
        at = tile_address(kernel, align("bias", bias, out.shape), (kept, "rows", "m"))
        scale = "" if beta == 1 else f"{literal(beta, torch.float32)} * "
        kernel.body += [
            f"    bias = tl.load({at}, mask=(rows < m) & (share == 0), other=0.0)",
            f"    acc = acc + {scale}bias.to(tl.float32)",
        ]
    if shares == 1:
        at = tile_address(kernel, align("out", out, out.shape), (kept, "rows", "m"))
    else:
        at = f"out_ptr + {'(share * tl.num_programs(2) + batch)' if batched else 'share'} * m + rows"
    kernel.body.append(f"    tl.store({at}, acc, mask=rows < m)")
    grid = f"triton.cdiv({module.size(m)}, {{BLOCK_M}}), {shares}"
    module.launch(kernel, f"({grid}, {module.size(out.shape[0])})" if batched else f"({grid})")
    if shares > 1:
        _add_parts(module, target, out)


def _turned(matrix: Operand) -> Operand:
    """The last two dimensions the other way round."""
    *before, rows, cols = range(len(matrix.strides))
    order = (*before, cols, rows)
    strides, dims = tuple(matrix.strides[dim] for dim in order), tuple(matrix.dims[dim] for dim in order)
    return replace(matrix, strides=strides, dims=dims)


def _add_parts(module: LoweredModule, parts: LoweredValue, out: LoweredValue) -> None:
    """The sum over the first dimension, in order."""
    kernel = LoweredKernel("add_parts", module)
    kernel.pointer("parts", parts.name)
    kernel.pointer("out", out.name)
    kernel.size("n_elements", out.numel)
    kernel.size("shares", parts.shape[0])
    kernel.knobs["BLOCK"] = module.block(out.numel, most=256)
    kernel.body += [
        f"    offsets = {module.program(0)} * BLOCK + tl.arange(0, BLOCK)",
        "    mask = offsets < n_elements",
        "    total = tl.zeros([BLOCK], tl.float32)",
        "    for share in range(0, shares):",
        "        total += tl.load(parts_ptr + share * n_elements + offsets, mask=mask, other=0.0)",
        "    tl.store(out_ptr + offsets, total, mask=mask)",
    ]
    module.launch(kernel, f"(triton.cdiv({module.size(out.numel)}, {{BLOCK}}),)")
