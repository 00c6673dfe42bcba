"""Stores a transposed tile by the layout that loaded it: neighbours in memory are no neighbours in a warp.

row: 62
ends: honest
no faster than: transpose_tiles
task: transpose_large
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def transpose_kernel(x_ptr, y_ptr, m, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    rows = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, layout))
    columns = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tile = gl.load(x_ptr + rows[:, None] * n + columns[None, :], mask=mask)
    gl.store(y_ptr + columns[None, :] * m + rows[:, None], tile, mask=mask)


def run(x):
    m, n = x.shape
    y = torch.empty((n, m), dtype=x.dtype, device=x.device)
    transpose_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](x, y, m, n, BLOCK=64)
    return y
