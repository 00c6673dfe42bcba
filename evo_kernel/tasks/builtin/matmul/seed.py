"""Matrix product, naively: one small output tile a program, in row-major order, every access masked."""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 32
BLOCK_K = 32
NUM_WARPS = 4


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, a_stride_m, a_stride_k, b_stride_k, b_stride_n, c_stride_m, c_stride_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    pid_m = tl.program_id(1)
    pid_n = tl.program_id(0)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        a_mask = (rows[:, None] < m) & (start + inner[None, :] < k)
        a = tl.load(a_ptr + rows[:, None] * a_stride_m + (start + inner[None, :]) * a_stride_k, mask=a_mask, other=0.0)
        b_mask = (start + inner[:, None] < k) & (cols[None, :] < n)
        b = tl.load(b_ptr + (start + inner[:, None]) * b_stride_k + cols[None, :] * b_stride_n, mask=b_mask, other=0.0)
        acc = tl.dot(a, b, acc)
    c_mask = (rows[:, None] < m) & (cols[None, :] < n)
    c = acc.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + rows[:, None] * c_stride_m + cols[None, :] * c_stride_n, c, mask=c_mask)


def run(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    matmul_kernel[(triton.cdiv(n, BLOCK_N), triton.cdiv(m, BLOCK_M))](
        a, b, c, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), c.stride(1),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=NUM_WARPS,
    )  # fmt: skip
    return c
