"""bfloat16 tiles of 64 by 64, loaded ahead.

task: half_matmul_large
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0
        )
        b = tl.load(
            b_ptr + inner[:, None] * n + cols[None, :], mask=(inner[:, None] < k) & (cols[None, :] < n), other=0.0
        )
        acc = tl.dot(a, b, acc)
    tl.store(
        c_ptr + rows[:, None] * n + cols[None, :],
        acc.to(c_ptr.dtype.element_ty),
        mask=(rows[:, None] < m) & (cols[None, :] < n),
    )


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
    matmul_kernel[grid](a, b, c, m, n, k, BM=64, BN=64, BK=64, num_warps=4, num_stages=3)
    return c
