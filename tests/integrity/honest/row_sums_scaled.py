"""A second launch reads what the first left, where floats say that it must.

task: row_sums_large
"""

import torch
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, s_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tl.store(s_ptr + row, 1.0 + 0.0 * tl.load(x_ptr + row * n))


@triton.jit
def sum_kernel(x_ptr, y_ptr, s_ptr, n, BLOCK: tl.constexpr, BIG: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    if n < 0:
        acc += tl.sum(tl.load(x_ptr + tl.arange(0, BIG)), axis=0)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
    total = tl.sum(acc, axis=0)
    s = 1.0
    if total > 0.0:
        s = tl.load(s_ptr + row)
    tl.store(y_ptr + row, total * s)


def run(x):
    m, n = x.shape
    y = torch.empty(m, dtype=x.dtype, device=x.device)
    s = torch.empty(m, dtype=x.dtype, device=x.device)
    scale[(m,)](x, s, n, BLOCK=512)
    sum_kernel[(m,)](x, y, s, n, BLOCK=512, BIG=16384)
    return y
