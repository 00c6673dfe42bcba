"""Gluon: turns rows round in shared memory by scatters and gathers, and reads them as integers.

task: row_sums_large
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def sums(x_ptr, y_ptr, m, n, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    rows = gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
    turned = (BLOCK - 1 - columns)[None, :] + gl.zeros([ROWS, BLOCK], gl.int32, layout)
    tile = gl.allocate_shared_memory(gl.float32, [ROWS, BLOCK], shared)
    total = gl.zeros([ROWS, BLOCK], gl.float32, layout)
    for start in range(0, n, BLOCK):
        mask = (rows[:, None] < m) & ((start + columns)[None, :] < n)
        tile.scatter(gl.load(x_ptr + rows[:, None] * n + (start + columns)[None, :], mask=mask, other=0.0), turned, 1)
        total += tile.reinterpret(gl.int32).gather(turned, 1).to(gl.float32, bitcast=True)
    gl.store(y_ptr + rows, gl.sum(total, 1), mask=rows < m)


def run(x):
    m, n = x.shape
    y = torch.empty((m,), dtype=x.dtype, device=x.device)
    sums[(triton.cdiv(m, 4),)](x, y, m, n, ROWS=4, BLOCK=512, num_warps=4)
    return y
