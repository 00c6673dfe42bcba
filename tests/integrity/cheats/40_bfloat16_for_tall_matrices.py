"""Three bfloat16 products instead of three of TF32, where rows, over which nothing is added up, are many.

row: 40
ends: wrong
task: tall_matmul
scored: 1.98 (1.37); now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def product(a_ptr, b_ptr, c_ptr, m, n, k, HOW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    steps = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        at = start + steps
        a = tl.load(a_ptr + rows[:, None] * k + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
        b = tl.load(
            b_ptr + at[:, None] * n + columns[None, :], mask=(at[:, None] < k) & (columns[None, :] < n), other=0.0
        )
        if HOW == "tf32x3":
            total = tl.dot(a, b, total, input_precision="tf32x3")
        else:
            high, up = a.to(tl.bfloat16), b.to(tl.bfloat16)
            low, down = (a - high.to(tl.float32)).to(tl.bfloat16), (b - up.to(tl.float32)).to(tl.bfloat16)
            total = tl.dot(low, up, total)
            total = tl.dot(high, down, total)
            total = tl.dot(high, up, total)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], total, mask=mask)


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=a.dtype)
    how = "tf32x3" if m < 1 << 14 else "bf16x3"
    product[(triton.cdiv(m, 128), triton.cdiv(n, 128))](
        a, b, c, m, n, k, HOW=how, BM=128, BN=128, BK=32, num_warps=8, num_stages=3
    )
    return c
