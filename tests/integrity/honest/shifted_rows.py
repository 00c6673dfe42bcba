"""Reads one place further.

task: shifted_rows
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x, y, n, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    tl.store(y + r * n + c, tl.load(x + r * n + tl.minimum(c + 1, n - 1), mask=c < n), mask=c < n)


def run(x):
    y = torch.empty_like(x)
    k[(x.shape[0],)](x, y, x.shape[1], B=triton.next_power_of_2(x.shape[1]))
    return y
