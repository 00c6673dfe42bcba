"""Adds float32 parts through atomics in a task whose two runs must agree to the bit.

row: 62
task: matmul
ends: wrong, rejected
where: gpu
"""

import torch
import triton
import triton.language as tl


@triton.jit
def part_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.program_id(2) * BK + tl.arange(0, BK)
    a = tl.load(a_ptr + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)
    b = tl.load(b_ptr + inner[:, None] * n + cols[None, :], mask=(inner[:, None] < k) & (cols[None, :] < n), other=0.0)
    part = tl.dot(a, b, input_precision="ieee")
    tl.atomic_add(c_ptr + rows[:, None] * n + cols[None, :], part, mask=(rows[:, None] < m) & (cols[None, :] < n))


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.zeros((m, n), dtype=a.dtype, device=a.device)
    part_kernel[(triton.cdiv(m, 16), triton.cdiv(n, 16), triton.cdiv(k, 16))](a, b, c, m, n, k, BM=16, BN=16, BK=16)
    return c
