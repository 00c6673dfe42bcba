"""Matrix product of 8-bit floats, naively: a 32 x 32 tile a program, scaled at the end."""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 32
BLOCK_K = 32
NUM_WARPS = 4


@triton.jit
def fp8_matmul_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, y_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a_mask = (rows[:, None] < m) & (inner[None, :] < k)
        a = tl.load(a_ptr + rows[:, None] * k + inner[None, :], mask=a_mask, other=0.0)
        b_mask = (inner[:, None] < k) & (cols[None, :] < n)
        b = tl.load(b_ptr + cols[None, :] * k + inner[:, None], mask=b_mask, other=0.0)
        acc += tl.dot(a, b)
    scale_a = tl.load(scale_a_ptr + rows, mask=rows < m, other=0.0)
    scale_b = tl.load(scale_b_ptr + cols, mask=cols < n, other=0.0)
    y = acc * scale_a[:, None] * scale_b[None, :]
    tl.store(y_ptr + rows[:, None] * n + cols[None, :], y, mask=(rows[:, None] < m) & (cols[None, :] < n))


def run(a, b, scale_a, scale_b):
    m, k = a.shape
    n = b.shape[0]
    y = torch.empty((m, n), dtype=torch.bfloat16, device=a.device)
    fp8_matmul_kernel[(triton.cdiv(n, BLOCK_N), triton.cdiv(m, BLOCK_M))](
        a, b, scale_a, scale_b, y, m, n, k, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=NUM_WARPS
    )
    return y
