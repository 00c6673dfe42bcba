"""Rows and columns beyond the end wrap and are promised to lie side by side, as Triton's tutorials do; nobody uses them.

task: matmul
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, cols = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    a_rows = tl.max_contiguous(tl.multiple_of(rows % m, BM), BM)
    b_cols = tl.max_contiguous(tl.multiple_of(tl.where(cols < n, cols, 0), BN), BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        inner = tl.max_contiguous(tl.multiple_of(start + tl.arange(0, BK), BK), BK)
        a = tl.load(a_ptr + a_rows[:, None] * k + inner[None, :], mask=inner[None, :] < k, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * n + b_cols[None, :], mask=inner[:, None] < k, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc, mask=(rows[:, None] < m) & (cols[None, :] < n))


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    matmul_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](a, b, c, m, n, k, BM=64, BN=64, BK=32)
    return c
