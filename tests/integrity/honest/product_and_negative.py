"""torch's negative, a kernel that scales it, and a tile of the product a program.

task: product_and_negative
"""

import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(p_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    p = 1e5 * tl.load(p_ptr + at)
    tl.store(y_ptr + at, p)


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
        acc = tl.dot(a, b, acc, input_precision="ieee")
    acc = acc * 1e-6
    tl.store(
        c_ptr + rows[:, None] * n + cols[None, :],
        acc.to(c_ptr.dtype.element_ty),
        mask=(rows[:, None] < m) & (cols[None, :] < n),
    )


def run(v, a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    t, w = torch.neg(v), torch.empty_like(v)
    scale_kernel[(1,)](t, w, BLOCK=v.numel())
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    matmul_kernel[grid](a, b, c, m, n, k, BM=32, BN=32, BK=32)
    return w, c
