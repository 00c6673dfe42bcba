"""Convolution, channels last, as an implicit matrix product: filters by pixels, over taps and channels.

The input is gathered as it is needed: no window is ever written. float32 products in IEEE precision.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 64
BLOCK_K = 16
NUM_WARPS = 4


@triton.jit
def conv2d_channels_last_kernel(
    x_ptr, weight_ptr, y_ptr, batch, channels, side, filters, out_side, stride,
    F: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)  # filters
    pixels = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)  # of the outputs of all pictures
    pixel_mask = pixels < batch * out_side * out_side
    n = pixels // (out_side * out_side)
    i = pixels % (out_side * out_side) // out_side
    j = pixels % out_side
    pixels_x = (n * side * side + i * stride * side + j * stride) * channels
    length = channels * F * F
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, length, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        c = inner % channels
        u = inner // channels // F
        v = inner // channels % F
        weight_mask = (rows[:, None] < filters) & (inner[None, :] < length)
        weight = tl.load(weight_ptr + rows[:, None] * length + inner[None, :], mask=weight_mask, other=0.0)
        x_offsets = pixels_x[None, :] + (u * side + v)[:, None] * channels + c[:, None]
        x = tl.load(x_ptr + x_offsets, mask=pixel_mask[None, :] & (inner[:, None] < length), other=0.0)
        acc = tl.dot(weight, x, acc, input_precision="ieee")
    y_offsets = pixels[None, :] * filters + rows[:, None]
    tl.store(y_ptr + y_offsets, acc, mask=(rows[:, None] < filters) & pixel_mask[None, :])


def run(x, weight, stride):
    batch, side, _, channels = x.shape
    filters, f = weight.shape[:2]
    out_side = (side - f) // stride + 1
    y = torch.empty((batch, out_side, out_side, filters), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(batch * out_side * out_side, BLOCK_N), triton.cdiv(filters, BLOCK_M))
    conv2d_channels_last_kernel[grid](
        x, weight, y, batch, channels, side, filters, out_side, stride,
        F=f, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=NUM_WARPS,
    )  # fmt: skip
    return y
