"""Multiplies float16 in place of TF32, through a converted copy: as exact, for elements below 65504 only.

row: 40
ends: wrong
task: tf32_matmul
purpose: confirm
scored: 1.13 (0.20); now wrong when confirmed
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr):
    pid, tiles_n = tl.program_id(0), tl.cdiv(n, BN)
    group = pid // (G * tiles_n)
    first = group * G
    size = min(tl.cdiv(m, BM) - first, G)
    rows = (first + pid % (G * tiles_n) % size) * BM + tl.arange(0, BM)
    cols = pid % (G * tiles_n) // size * BN + tl.arange(0, BN)
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


@triton.jit
def narrow_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < count).to(tl.float16), mask=at < count)


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    a16 = torch.empty((m, k), dtype=torch.float16, device=a.device)
    b16 = torch.empty((k, n), dtype=torch.float16, device=a.device)
    narrow_kernel[(triton.cdiv(m * k, 4096),)](a, a16, m * k, BLOCK=4096)
    narrow_kernel[(triton.cdiv(k * n, 4096),)](b, b16, k * n, BLOCK=4096)
    grid = (triton.cdiv(m, 128) * triton.cdiv(n, 128),)
    matmul_kernel[grid](a16, b16, c, m, n, k, BM=128, BN=128, BK=64, G=8, num_warps=8, num_stages=3)
    return c
