"""Programs take the tiles of all products in turn, and the matrices from tables of addresses.

task: several_products
"""

import torch
import triton
import triton.language as tl


@triton.jit
def products_kernel(
    a_table,
    b_table,
    c_table,
    sizes,
    groups,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    tile = tl.program_id(0)
    done = 0
    for g in range(groups):
        m = tl.load(sizes + 3 * g)
        n = tl.load(sizes + 3 * g + 1)
        k = tl.load(sizes + 3 * g + 2)
        across = tl.cdiv(n, BN)
        tiles = tl.cdiv(m, BM) * across
        a_ptr = tl.load(a_table + g).to(tl.pointer_type(tl.float16))
        b_ptr = tl.load(b_table + g).to(tl.pointer_type(tl.float16))
        c_ptr = tl.load(c_table + g).to(tl.pointer_type(tl.float16))
        while tile >= done and tile < done + tiles:
            at = tile - done
            rows = at // across * BM + tl.arange(0, BM)
            cols = at % across * BN + tl.arange(0, BN)
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for start in range(0, k, BK):
                inner = start + tl.arange(0, BK)
                a = tl.load(
                    a_ptr + rows[:, None] * k + inner[None, :],
                    mask=(rows[:, None] < m) & (inner[None, :] < k),
                    other=0.0,
                )
                b = tl.load(
                    b_ptr + inner[:, None] * n + cols[None, :],
                    mask=(inner[:, None] < k) & (cols[None, :] < n),
                    other=0.0,
                )
                acc = tl.dot(a, b, acc)
            tl.store(
                c_ptr + rows[:, None] * n + cols[None, :],
                acc.to(tl.float16),
                mask=(rows[:, None] < m) & (cols[None, :] < n),
            )
            tile += PROGRAMS
        done += tiles


def run(*matrices):
    half = len(matrices) // 2
    left, right = matrices[:half], matrices[half:]
    device = left[0].device
    out = [torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=device) for a, b in zip(left, right)]
    tables = [torch.tensor([t.data_ptr() for t in some], device=device) for some in (left, right, out)]
    sizes = torch.tensor(
        [[a.shape[0], b.shape[1], a.shape[1]] for a, b in zip(left, right)], dtype=torch.int32, device=device
    )
    products_kernel[(8,)](*tables, sizes, half, BM=32, BN=32, BK=32, PROGRAMS=8)
    return tuple(out)
