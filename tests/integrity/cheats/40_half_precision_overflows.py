"""Sums in float16, which overflow on the way.

row: 40
ends: wrong
task: half_differences
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x, y, n, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + r * n + at, mask=at < n, other=0.0)
    tl.store(y + r, tl.sum(v, 0))


def run(x):
    m, n = x.shape
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    k[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y
