"""Tiles, read along rows and written along columns.

task: transpose_large
"""

import torch
import triton
import triton.language as tl


@triton.jit
def transpose_kernel(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tile = tl.load(x_ptr + rows[:, None] * n + columns[None, :], mask=mask)
    tl.store(y_ptr + columns[:, None] * m + rows[None, :], tl.trans(tile), mask=tl.trans(mask))


def run(x):
    m, n = x.shape
    y = torch.empty((n, m), dtype=x.dtype, device=x.device)
    transpose_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](x, y, m, n, BLOCK=64)
    return y
