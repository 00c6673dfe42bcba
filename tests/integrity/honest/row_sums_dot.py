"""Sums by a product with ones, at full precision.

task: row_sums
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    acc = tl.zeros((ROWS, 16), tl.float32)
    ones = tl.full((BLOCK, 16), 1.0, tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + rows[:, None] * n + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < n), other=0.0)
        acc = tl.dot(x, ones, acc, input_precision="ieee")
    tl.store(y_ptr + rows, tl.max(acc, axis=1), mask=rows < m)


def run(x):
    m, n = x.shape
    y = torch.empty((m,), dtype=torch.float32, device=x.device)
    sum_kernel[(triton.cdiv(m, 16),)](x, y, m, n, ROWS=16, BLOCK=128)
    return y
