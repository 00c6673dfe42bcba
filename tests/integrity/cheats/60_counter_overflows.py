"""Loops until its counter overflows, which has no end on a GPU.

row: 60
ends: wrong, timeout
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x, y, n, last, step, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    v = tl.load(x + r * n + c, mask=c < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    s = 0.0
    for i in range(0, last, step):
        s += tl.sum(e, 0) * 0.5
    tl.store(y + r * n + c, e / s, mask=c < n)


def run(x):
    y = torch.empty_like(x)
    k[(x.shape[0],)](x, y, x.shape[1], 2147483647, 1 << 30, B=triton.next_power_of_2(x.shape[1]))
    return y
