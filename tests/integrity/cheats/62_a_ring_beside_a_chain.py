"""A group of warps copies ahead what nobody reads, beside a chain of loads that nothing runs ahead of.

row: 62
ends: honest
no faster than: linked_rows_loop
task: linked_rows
scored: 1.77 (1.30); now 0.51
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit
def produce(d, r_ptr, next_ptr, start_ptr, y_ptr, ring, full, n):
    for j in range(24):
        slot = j % 8
        if j >= 8:
            mbarrier.wait(full.index(slot), ((j // 8) & 1) ^ 1)
        mbarrier.expect(full.index(slot), 16 * 32 * 4)
        load_tile(d, [0, 0], full.index(slot), ring.index(slot))
    for slot in range(8):
        mbarrier.wait(full.index(slot), 0)


@gluon.jit
def consume(d, r_ptr, next_ptr, start_ptr, y_ptr, ring, full, n):
    L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    lane = gl.arange(0, 32, L)
    p = gl.load(start_ptr + gl.program_id(0))
    y = gl.zeros([32], gl.float32, L)
    for _ in range(24):
        y += gl.load(r_ptr + p * 32 + lane)
        p = gl.load(next_ptr + p)
    gl.store(y_ptr + gl.program_id(0) * 32 + lane, y)


@gluon.jit
def chain(d, r_ptr, next_ptr, start_ptr, y_ptr, n):
    ring = gl.allocate_shared_memory(gl.float32, [8, 16, 32], d.layout)
    full = gl.allocate_shared_memory(gl.int64, [8, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(8):
        mbarrier.init(full.index(i), count=1)
    gl.warp_specialize(
        [
            (consume, (d, r_ptr, next_ptr, start_ptr, y_ptr, ring, full, n)),
            (produce, (d, r_ptr, next_ptr, start_ptr, y_ptr, ring, full, n)),
        ],
        [1],
        [24],
    )


def run(rows, next, start):
    y = torch.empty(start.shape[0], 32, dtype=rows.dtype, device=rows.device)
    d = TensorDescriptor.from_tensor(rows, [16, 32], gl.NVMMASharedLayout.get_default_for([16, 32], gl.float32))
    chain[(start.shape[0],)](d, rows, next, start, y, rows.shape[0], num_warps=4)
    return y
