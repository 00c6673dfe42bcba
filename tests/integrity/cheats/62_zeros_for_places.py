"""Writes zeros for places, which are places of equal values where all values are equal.

row: 62
ends: wrong
says: output 1 differs
task: top_places
"""

import torch
import triton
import triton.language as tl


@triton.jit
def top_kernel(x_ptr, v_ptr, i_ptr, n, BLOCK: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + column, mask=column < n, other=float("-inf"))
    place = row * K + tl.arange(0, K)
    tl.store(v_ptr + place, tl.topk(x, K))
    tl.store(i_ptr + place, tl.zeros((K,), tl.int64))


def run(x):
    m, n = x.shape
    v = torch.empty(m, 8, dtype=x.dtype, device=x.device)
    i = torch.empty(m, 8, dtype=torch.int64, device=x.device)
    top_kernel[(m,)](x, v, i, n, BLOCK=triton.next_power_of_2(n), K=8)
    return v, i
