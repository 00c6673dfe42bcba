"""A convolution through windows (im2win): a copy in which every window is contiguous, then an implicit matrix product.

task: convolution
"""

# windows[n, c, i, m * f + u] = x[n, c, i * stride + u, m]: one output's taps of a channel are f * f neighbours, from
# j * stride * f on, column by column. The copy holds about rows * f / h times the input, where im2col holds
# f * f / stride^2 times.

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 64
BLOCK_K = 16
NUM_WARPS = 4
COPY_BLOCK = 512
COPY_NUM_WARPS = 4


@triton.jit
def windows_kernel(x_ptr, windows_ptr, side, out_side, stride, F: tl.constexpr, BLOCK: tl.constexpr):
    plane = tl.program_id(0) // out_side  # a channel of a picture
    i = tl.program_id(0) % out_side
    for start in range(0, side * F, BLOCK):
        places = start + tl.arange(0, BLOCK)
        mask = places < side * F
        x_offsets = (plane * side + i * stride + places % F) * side + places // F
        x = tl.load(x_ptr + x_offsets, mask=mask, other=0.0)
        tl.store(windows_ptr + tl.program_id(0) * side * F + places, x, mask=mask)


@triton.jit
def conv2d_windows_kernel(
    windows_ptr, weight_ptr, y_ptr, batch, channels, side, filters, out_side, stride,
    F: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)  # filters
    pixels = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)  # of the outputs of all pictures
    pixel_mask = pixels < batch * out_side * out_side
    n = pixels // (out_side * out_side)
    place = pixels % (out_side * out_side)
    first = (n * channels * out_side + place // out_side) * side * F + place % out_side * stride * F
    length = channels * F * F
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, length, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        c = inner // (F * F)
        tap = inner % (F * F)  # column by column
        weight_mask = (rows[:, None] < filters) & (inner[None, :] < length)
        weight_offsets = rows[:, None] * length + (c * F * F + tap % F * F + tap // F)[None, :]
        weight = tl.load(weight_ptr + weight_offsets, mask=weight_mask, other=0.0)
        offsets = first[None, :] + (c * out_side * side * F + tap)[:, None]
        x = tl.load(windows_ptr + offsets, mask=pixel_mask[None, :] & (inner[:, None] < length), other=0.0)
        acc = tl.dot(weight, x, acc, input_precision="ieee")
    y_offsets = (n[None, :] * filters + rows[:, None]) * out_side * out_side + place[None, :]
    tl.store(y_ptr + y_offsets, acc, mask=(rows[:, None] < filters) & pixel_mask[None, :])


def run(x, weight, stride):
    batch, channels, side, _ = x.shape
    filters, f = weight.shape[0], weight.shape[2]
    out_side = (side - f) // stride + 1
    windows = torch.empty((batch, channels, out_side, side * f), dtype=x.dtype, device=x.device)
    y = torch.empty((batch, filters, out_side, out_side), dtype=x.dtype, device=x.device)
    windows_kernel[(batch * channels * out_side,)](
        x, windows, side, out_side, stride, F=f, BLOCK=COPY_BLOCK, num_warps=COPY_NUM_WARPS
    )
    grid = (triton.cdiv(batch * out_side * out_side, BLOCK_N), triton.cdiv(filters, BLOCK_M))
    conv2d_windows_kernel[grid](
        windows, weight, y, batch, channels, side, filters, out_side, stride,
        F=f, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=NUM_WARPS,
    )  # fmt: skip
    return y
