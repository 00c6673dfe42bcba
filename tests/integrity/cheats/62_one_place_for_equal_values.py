"""Sorts values alone, and takes the first place of each: equal values have one place.

row: 62
ends: wrong
says: output 1 differs
task: top_places
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def top_kernel(x_ptr, v_ptr, i_ptr, n, BLOCK: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + column, mask=column < n, other=float("-inf"))
    top = tl.topk(x, K)
    found = tl.where(x[None, :] == top[:, None], column[None, :], BLOCK)
    place = row * K + tl.arange(0, K)
    tl.store(v_ptr + place, top)
    tl.store(i_ptr + place, tl.min(found, 1).to(tl.int64))


def run(x):
    m, n = x.shape
    v = torch.empty(m, 8, dtype=x.dtype, device=x.device)
    i = torch.empty(m, 8, dtype=torch.int64, device=x.device)
    top_kernel[(m,)](x, v, i, n, BLOCK=triton.next_power_of_2(n), K=8)
    return v, i
