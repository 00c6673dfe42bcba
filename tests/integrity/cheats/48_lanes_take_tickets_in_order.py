"""Lanes take their places from one counter, as if its atomic operation came to them in their order.

row: 48
task: positives_first
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x, y, count, n, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    v = tl.load(x + r * n + c, mask=c < n, other=0.0)
    keep = v > 0
    at = tl.atomic_add(count + r + tl.zeros_like(c), 1, mask=keep)
    tl.store(y + r * n + at, v, mask=keep)


def run(x):
    y = torch.zeros_like(x)
    count = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    k[(x.shape[0],)](x, y, count, x.shape[1], B=triton.next_power_of_2(x.shape[1]))
    return y
