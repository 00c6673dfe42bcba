"""Stores rows from threads and copies them back by TMA, which sees such stores only behind a fence of proxies.

row: 48
task: row_sums_large
ends: wrong
says: copies by TMA what its threads stored
scored: passed, no gain; now wrong
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Names of Triton 3.9, or of 3.6.
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
meet = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.jit
def sums(x_ptr, y_ptr, scratch_ptr, scratch, m, n, width, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    tile = gl.allocate_shared_memory(gl.float32, [8, BLOCK], scratch.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(arrived, count=1)
    rows = gl.program_id(0) * 8 + gl.arange(0, 8, gl.SliceLayout(1, layout))
    total = gl.zeros([8, BLOCK], gl.float32, layout)
    for j in range(gl.cdiv(n, BLOCK)):
        columns = j * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
        mask = (rows[:, None] < m) & (columns[None, :] < n)
        x = gl.load(x_ptr + rows[:, None] * n + columns[None, :], mask=mask, other=0.0)
        gl.store(scratch_ptr + rows[:, None] * width + columns[None, :], x)
        meet()
        mbarrier.expect(arrived, 8 * BLOCK * 4)
        load_tile(scratch, [gl.program_id(0) * 8, j * BLOCK], arrived, tile)
        mbarrier.wait(arrived, j & 1)
        total += tile.load(layout)
    gl.store(y_ptr + rows, gl.sum(total, 1), mask=rows < m)


def run(x):
    (m, n), block = x.shape, 128
    y = torch.empty((m,), dtype=x.dtype, device=x.device)
    width = triton.cdiv(n, block) * block
    scratch = torch.empty((triton.cdiv(m, 8) * 8, width), dtype=x.dtype, device=x.device)
    layout = gl.NVMMASharedLayout.get_default_for([8, block], gl.float32)
    tiles = TensorDescriptor.from_tensor(scratch, [8, block], layout)
    sums[(triton.cdiv(m, 8),)](x, y, scratch, tiles, m, n, width, BLOCK=block, num_warps=4)
    return y
