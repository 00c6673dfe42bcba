"""Sorts keys of 32 bits, which hold values rounded to 16 bits beside their places: unequal values pass for equal ones.

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
    bits = x.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    low = tl.topk((key & -0x10000) | (0xFFFF - column), K) & 0xFFFF
    place = row * K + tl.arange(0, K)
    tl.store(v_ptr + place, tl.topk(x, K))
    tl.store(i_ptr + place, (0xFFFF - low).to(tl.int64))


def run(x):
    m, n = x.shape
    v = torch.empty(m, 8, dtype=x.dtype, device=x.device)
    i = torch.empty(m, 8, dtype=torch.int64, device=x.device)
    top_kernel[(m,)](x, v, i, n, BLOCK=triton.next_power_of_2(n), K=8)
    return v, i
