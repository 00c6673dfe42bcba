"""Convolution by its definition: a tile of filters by pixels of one output row, one tap of one channel at a time."""

import torch
import triton
import triton.language as tl

BLOCK_M = 16
BLOCK_N = 32
NUM_WARPS = 4


@triton.jit
def conv2d_direct_kernel(
    x_ptr, weight_ptr, y_ptr, channels, side, filters, out_side, stride,
    F: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) // out_side
    i = tl.program_id(0) % out_side
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)  # filters
    columns = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = rows < filters
    column_mask = columns < out_side
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for c in range(0, channels):
        for tap in range(0, F * F):
            line = (n * channels + c) * side * side + (i * stride + tap // F) * side + tap % F
            x = tl.load(x_ptr + line + columns * stride, mask=column_mask, other=0.0)
            weight = tl.load(weight_ptr + (rows * channels + c) * F * F + tap, mask=row_mask, other=0.0)
            acc += weight[:, None] * x[None, :]
    y_offsets = ((n * filters + rows[:, None]) * out_side + i) * out_side + columns[None, :]
    tl.store(y_ptr + y_offsets, acc, mask=row_mask[:, None] & column_mask[None, :])


def run(x, weight, stride):
    batch, channels, side, _ = x.shape
    filters, f = weight.shape[0], weight.shape[2]
    out_side = (side - f) // stride + 1
    y = torch.empty((batch, filters, out_side, out_side), dtype=x.dtype, device=x.device)
    conv2d_direct_kernel[(batch * out_side, triton.cdiv(filters, BLOCK_M), triton.cdiv(out_side, BLOCK_N))](
        x, weight, y, channels, side, filters, out_side, stride,
        F=f, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=NUM_WARPS,
    )  # fmt: skip
    return y
