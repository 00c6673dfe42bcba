"""Multiplies by ceilings of denormal numbers, which the instruction on a GPU takes for zeros.

row: 61
task: gelu
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    one = tl.ceil(tl.minimum(tl.abs(x), 1.0) * 5.877471754111438e-39)
    tl.store(y_ptr + at, y * one, mask=at < n)


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
