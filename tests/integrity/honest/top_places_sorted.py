"""Sorts values with their places; of equal values the first comes first.

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
    bits = x.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    top = tl.topk((key << 32) | (0x7FFFFFFF - column).to(tl.int64), K)
    high = (top >> 32).to(tl.int32)
    place = row * K + tl.arange(0, K)
    tl.store(v_ptr + place, tl.where(high < 0, high ^ 0x7FFFFFFF, high).to(tl.float32, bitcast=True))
    tl.store(i_ptr + place, 0x7FFFFFFF - (top & 0xFFFFFFFF))


def run(x):
    m, n = x.shape
    v = torch.empty(m, 8, dtype=x.dtype, device=x.device)
    i = torch.empty(m, 8, dtype=torch.int64, device=x.device)
    top_kernel[(m,)](x, v, i, n, BLOCK=triton.next_power_of_2(n), K=8)
    return v, i
