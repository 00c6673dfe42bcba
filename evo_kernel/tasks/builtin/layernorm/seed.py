"""LayerNorm over rows, naively: three passes (mean, variance, write), one row a program."""

import torch
import triton
import triton.language as tl

EPS = 1e-5
BLOCK = 256
NUM_WARPS = 4


@triton.jit
def layernorm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, n_cols, x_stride, y_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row * x_stride + start + cols, mask=mask, other=0.0)
        total += x
    mean = tl.sum(total, axis=0) / n_cols
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row * x_stride + start + cols, mask=mask, other=0.0)
        difference = tl.where(mask, x - mean, 0.0)
        squares += difference * difference
    variance = tl.sum(squares, axis=0) / n_cols
    scale = 1.0 / tl.sqrt(variance + eps)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row * x_stride + start + cols, mask=mask, other=0.0)
        weight = tl.load(weight_ptr + start + cols, mask=mask, other=0.0)
        bias = tl.load(bias_ptr + start + cols, mask=mask, other=0.0)
        y = (x - mean) * scale * weight + bias
        tl.store(y_ptr + row * y_stride + start + cols, y, mask=mask)


def run(x, weight, bias):
    m, n = x.shape
    y = torch.empty_like(x)
    layernorm_kernel[(m,)](x, weight, bias, y, n, x.stride(0), y.stride(0), EPS, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return y
