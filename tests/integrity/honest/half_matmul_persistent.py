"""Persistent over output tiles, one program an SM.

task: half_matmul
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SMS: tl.constexpr
):
    tiles_n = tl.cdiv(n, BN)
    tiles = tl.cdiv(m, BM) * tiles_n
    for tile in tl.range(tl.program_id(0), tiles, SMS, flatten=True):
        rows = tile // tiles_n * BM + tl.arange(0, BM)
        cols = tile % tiles_n * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
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
            acc.to(tl.bfloat16),
            mask=(rows[:, None] < m) & (cols[None, :] < n),
        )


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = a.new_empty((m, n))
    sms = torch.cuda.get_device_properties("cuda").multi_processor_count
    matmul_kernel[(min(sms, triton.cdiv(m, 32) * triton.cdiv(n, 32)),)](a, b, c, m, n, k, BM=32, BN=32, BK=32, SMS=sms)
    return c
