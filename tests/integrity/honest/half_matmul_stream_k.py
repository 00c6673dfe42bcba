"""Stream-k: programs share the steps of all tiles equally; the last one of a tile waits for the parts of others.

task: half_matmul
"""

import torch
import triton
import triton.language as tl


@triton.jit
def streamk(
    a_ptr,
    b_ptr,
    c_ptr,
    part_ptr,
    flag_ptr,
    m,
    n,
    k,
    per,
    total,
    tiles_n,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    pid = tl.program_id(0)
    per_tile = tl.cdiv(k, BK)
    at = pid * per
    end = tl.minimum(at + per, total)
    while at < end:
        tile = at // per_tile
        first = tile * per_tile
        stop = tl.minimum(first + per_tile, end)
        rows = (tile // tiles_n) * BM + tl.arange(0, BM)
        cols = (tile % tiles_n) * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for it in range(at - first, stop - first):
            inner = it * BK + tl.arange(0, BK)
            a = tl.load(
                a_ptr + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0
            )
            b = tl.load(
                b_ptr + inner[:, None] * n + cols[None, :], mask=(inner[:, None] < k) & (cols[None, :] < n), other=0.0
            )
            acc = tl.dot(a, b, acc)
        here = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        if stop != first + per_tile:
            tl.store(part_ptr + pid * BM * BN + here, acc)
            tl.debug_barrier()
            tl.atomic_xchg(flag_ptr + pid, 1, sem="release")
        else:
            other = pid - 1
            begun = at
            while begun > first:
                while tl.atomic_cas(flag_ptr + other, 1, 1, sem="acquire") != 1:
                    pass
                acc += tl.load(part_ptr + other * BM * BN + here)
                begun = other * per
                other -= 1
            tl.store(
                c_ptr + rows[:, None] * n + cols[None, :],
                acc.to(c_ptr.dtype.element_ty),
                mask=(rows[:, None] < m) & (cols[None, :] < n),
            )
        at = stop


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    BM, BN, BK = 32, 32, 32
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    tiles_m, tiles_n = triton.cdiv(m, BM), triton.cdiv(n, BN)
    total = tiles_m * tiles_n * triton.cdiv(k, BK)
    per = triton.cdiv(total, 5)
    part = torch.empty((5, BM, BN), dtype=torch.float32, device=a.device)
    flags = torch.zeros(5, dtype=torch.int32, device=a.device)
    streamk[(5,)](a, b, c, part, flags, m, n, k, per, total, tiles_n, BM=BM, BN=BN, BK=BK, num_warps=4)
    return c
