"""Leaves one group of copies too many under way when it adds up what they bring.

row: 61
task: row_sums_large
ends: wrong
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# Names of Triton 3.9, or of 3.6.
load_tile = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def sums(x_ptr, y_ptr, m, n, ROWS: gl.constexpr, BLOCK: gl.constexpr, RING: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    rows = gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    ring = gl.allocate_shared_memory(gl.float32, [RING, ROWS, BLOCK], shared)
    total = gl.zeros([ROWS, BLOCK], gl.float32, layout)
    for j in range(1 - RING, gl.cdiv(n, BLOCK)):
        columns = (j + RING - 1) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
        mask = (rows[:, None] < m) & (columns[None, :] < n)
        load_tile(ring.index((j + RING - 1) % RING), x_ptr + rows[:, None] * n + columns[None, :], mask=mask)
        async_copy.commit_group()
        if j >= 0:
            async_copy.wait_group(RING)
            total += ring.index(j % RING).load(layout)  # zeros where the mask was off
    gl.store(y_ptr + rows, gl.sum(total, 1), mask=rows < m)


def run(x):
    m, n = x.shape
    y = torch.empty((m,), dtype=x.dtype, device=x.device)
    sums[(triton.cdiv(m, 4),)](x, y, m, n, ROWS=4, BLOCK=128, RING=4, num_warps=4)
    return y
