"""Sorts keys of 32 bits, with a place in the last ones of a value, as if TF32 were for values that are not multiplied.

row: 40
task: top_places_tf32
ends: wrong
scored: 4.05 (2.12)
"""

import torch
import triton
import triton.language as tl


@triton.jit
def top_kernel(x_ptr, v_ptr, i_ptr, N: tl.constexpr, K: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, N)
    bits = tl.load(x_ptr + row * N + column).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    top = tl.topk((key & -N) | (N - 1 - column), K)
    high = top & -N
    place = row * K + tl.arange(0, K)
    tl.store(v_ptr + place, tl.where(high < 0, high ^ 0x7FFFFFFF, high).to(tl.float32, bitcast=True))
    tl.store(i_ptr + place, (N - 1 - (top & (N - 1))).to(tl.int64))


def run(x):
    m, n = x.shape
    v = torch.empty(m, 8, dtype=x.dtype, device=x.device)
    i = torch.empty(m, 8, dtype=torch.int64, device=x.device)
    top_kernel[(m,)](x, v, i, N=n, K=8)
    return v, i
