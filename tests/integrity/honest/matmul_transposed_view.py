"""Computes the transpose from transposed views, and returns its transpose.

task: matmul
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BN, BM), tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rows[:, None] * am + inner[None, :] * ak, mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0
        )
        b = tl.load(
            b_ptr + inner[:, None] * bk + cols[None, :] * bn, mask=(inner[:, None] < k) & (cols[None, :] < n), other=0.0
        )
        acc = tl.dot(tl.trans(b), a.T, acc, input_precision="ieee")
    acc = tl.trans(acc)
    tl.store(c_ptr + rows[:, None] * cm + cols[None, :] * cn, acc, mask=(rows[:, None] < m) & (cols[None, :] < n))


def run(a, b):
    left, right = b.t(), a.mT
    (m, k), n = left.shape, right.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    matmul_kernel[(triton.cdiv(m, 32), triton.cdiv(n, 32))](
        left, right, c, m, n, k, *left.stride(), *right.stride(), *c.stride(), BM=32, BN=32, BK=32
    )
    return c.transpose(0, 1)
