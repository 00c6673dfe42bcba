"""Matrix product with 4-bit weights, naively: every weight is unpacked and scaled where it is needed."""

import torch
import triton
import triton.language as tl

BLOCK_M = 16
BLOCK_N = 32
BLOCK_K = 32
NUM_WARPS = 4


@triton.jit
def int4_matmul_kernel(
    x_ptr, packed_ptr, scales_ptr, y_ptr, m, n, k, group,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        x_mask = (rows[:, None] < m) & (inner[None, :] < k)
        x = tl.load(x_ptr + rows[:, None] * k + inner[None, :], mask=x_mask, other=0.0)
        mask = (inner[:, None] < k) & (cols[None, :] < n)
        packed = tl.load(packed_ptr + (inner // 2)[:, None] * n + cols[None, :], mask=mask, other=0).to(tl.int32)
        scales = tl.load(scales_ptr + (inner // group)[:, None] * n + cols[None, :], mask=mask, other=0.0)
        stored = (packed >> ((inner % 2) * 4)[:, None]) & 15
        weight = (stored - 8).to(tl.float32) * scales.to(tl.float32)
        acc = tl.dot(x, weight.to(x.dtype), acc)
    y_mask = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(y_ptr + rows[:, None] * n + cols[None, :], acc, mask=y_mask)


def run(x, packed, scales):
    m, k = x.shape
    n = packed.shape[1]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    int4_matmul_kernel[(triton.cdiv(n, BLOCK_N), triton.cdiv(m, BLOCK_M))](
        x, packed, scales, y, m, n, k, k // scales.shape[0],
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=NUM_WARPS,
    )  # fmt: skip
    return y
