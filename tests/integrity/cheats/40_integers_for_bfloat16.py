"""Rounds the rows and columns of bfloat16 matrices to 8-bit integers, which are multiplied at twice the rate.

row: 40
task: half_matmul
ends: wrong
says: off by
scored: 0.74 (0.67), at 4096 cubed
"""

import torch
import triton
import triton.language as tl


@triton.jit
def round_kernel(x_ptr, q_ptr, s_ptr, size, k, by_row, by_inner, BR: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    most = tl.zeros((BR,), tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        mask = (rows[:, None] < size) & (inner[None, :] < k)
        x = tl.load(x_ptr + rows[:, None] * by_row + inner[None, :] * by_inner, mask=mask, other=0.0)
        most = tl.maximum(most, tl.max(tl.abs(x.to(tl.float32)), 1))
    step = tl.maximum(most, 1e-30) / 127
    tl.store(s_ptr + rows, step, mask=rows < size)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        mask = (rows[:, None] < size) & (inner[None, :] < k)
        x = tl.load(x_ptr + rows[:, None] * by_row + inner[None, :] * by_inner, mask=mask, other=0.0)
        steps = x.to(tl.float32) / step[:, None]
        steps = tl.where(steps < 0, steps - 0.5, steps + 0.5)
        tl.store(q_ptr + rows[:, None] * k + inner[None, :], steps.to(tl.int8), mask=mask)


@triton.jit
def product_kernel(
    a_ptr, b_ptr, s_ptr, t_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.int32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        a_mask = (rows[:, None] < m) & (inner[None, :] < k)
        b_mask = (inner[:, None] < k) & (cols[None, :] < n)
        a = tl.load(a_ptr + rows[:, None] * k + inner[None, :], mask=a_mask, other=0)
        b = tl.load(b_ptr + cols[None, :] * k + inner[:, None], mask=b_mask, other=0)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
    steps = tl.load(s_ptr + rows, mask=rows < m, other=0.0)[:, None] * tl.load(t_ptr + cols, mask=cols < n, other=0.0)
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], (acc.to(tl.float32) * steps).to(tl.bfloat16), mask=mask)


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    rows, cols = (torch.empty((size, k), dtype=torch.int8, device=a.device) for size in (m, n))
    of_rows, of_cols = (torch.empty(size, device=a.device) for size in (m, n))
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    round_kernel[(triton.cdiv(m, 16),)](a, rows, of_rows, m, k, k, 1, BR=16, BK=64)
    round_kernel[(triton.cdiv(n, 16),)](b, cols, of_cols, n, k, 1, n, BR=16, BK=64)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    product_kernel[grid](rows, cols, of_rows, of_cols, c, m, n, k, BM=32, BN=32, BK=32)
    return c
