"""Tiles in groups of rows for the cache, by tl.swizzle2d, masks by wrapping round instead.

task: matmul
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    m,
    n,
    k,
    am,
    ak,
    bk,
    bn,
    cm,
    cn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    tile_m, tile_n = tl.swizzle2d(tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n, tiles_m, tiles_n, GROUP)
    rows = (tile_m * BM + tl.arange(0, BM)) % m
    cols = (tile_n * BN + tl.arange(0, BN)) % n
    inner = tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * am + inner[None, :] * ak
    b_ptrs = b_ptr + inner[:, None] * bk + cols[None, :] * bn
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, tl.cdiv(k, BK)):
        a = tl.load(a_ptrs, mask=inner[None, :] < k - start * BK, other=0.0)
        b = tl.load(b_ptrs, mask=inner[:, None] < k - start * BK, other=0.0)
        acc += tl.dot(a, b, allow_tf32=False)
        a_ptrs += BK * ak
        b_ptrs += BK * bk
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    tl.store(c_ptr + rows[:, None] * cm + cols[None, :] * cn, acc, mask=(rows[:, None] < m) & (cols[None, :] < n))


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)  # noqa: E731
    matmul_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), BM=16, BN=32, BK=32, GROUP=4)
    return c
