"""Reads from memory what the loop stored a round before; the loop is not pipelined, as it has no products.

task: lagged_sums
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for start in range(0, n, BLOCK):
        place = tl.program_id(0) * n + start + at
        before = tl.load(y_ptr + place - BLOCK, mask=(start > 0) & (at >= 0), other=0.0)
        tl.store(y_ptr + place, tl.load(x_ptr + place) + 0.5 * before)


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    sums_kernel[(m,)](x, y, n, BLOCK=1024)
    return y
