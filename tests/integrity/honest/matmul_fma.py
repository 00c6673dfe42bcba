"""No tensor cores: products and sums in registers.

task: matmul
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for inner in range(k):
        a = tl.load(a_ptr + rows * k + inner, mask=rows < m, other=0.0)
        b = tl.load(b_ptr + inner * n + cols, mask=cols < n, other=0.0)
        acc = tl.fma(a[:, None] + tl.zeros_like(acc), b[None, :] + tl.zeros_like(acc), acc)
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc, mask=(rows[:, None] < m) & (cols[None, :] < n))


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    matmul_kernel[(triton.cdiv(m, 32), triton.cdiv(n, 32))](a, b, c, m, n, k, BM=32, BN=32)
    return c
