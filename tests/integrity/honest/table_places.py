"""A binary search for each number.

task: table_places
"""

import torch
import triton
import triton.language as tl


@triton.jit
def place_kernel(t_ptr, x_ptr, y_ptr, n, m, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    low, high = tl.zeros((BLOCK,), tl.int32), tl.full((BLOCK,), m, tl.int32)
    for _ in range(STEPS):
        middle = (low + high) // 2
        less = (low < high) & (tl.load(t_ptr + middle, mask=low < high, other=0) < x)
        high, low = tl.where(less, high, middle), tl.where(less, middle + 1, low)
    tl.store(y_ptr + at, low.to(tl.int64), mask=at < n)


def run(table, x):
    y = torch.empty(x.numel(), dtype=torch.int64, device=x.device)
    n, m = x.numel(), table.numel()
    place_kernel[(triton.cdiv(n, 256),)](table, x, y, n, m, STEPS=m.bit_length() + 1, BLOCK=256)
    return y
