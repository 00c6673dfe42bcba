"""Computes powers as denormal numbers, which the instruction on a GPU makes zeros.

row: 61
task: powers_of_two
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def power_kernel(x, y, n, B: tl.constexpr):
    c = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + c, tl.exp2(tl.load(x + c, mask=c < n) - 127.0) * 1.7014118346046923e38, mask=c < n)


def run(x):
    y = torch.empty_like(x)
    power_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
    return y
