"""A product whose layout has two warps across the columns; the instruction has all four across the rows.

row: 61
task: half_matmul
ends: rejected, wrong
says: layout
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Names of Triton 3.9, or of 3.6.
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
store_tile = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


@gluon.jit
def produce(a_desc, b_desc, a_ring, b_ring, full, empty, row, col, steps):
    for j in range(steps):
        slot = j % 3
        mbarrier.wait(empty.index(slot), ((j // 3) & 1) ^ 1)
        mbarrier.expect(full.index(slot), 2 * 64 * 64 * 2)
        load_tile(a_desc, [row, j * 64], full.index(slot), a_ring.index(slot))
        load_tile(b_desc, [j * 64, col], full.index(slot), b_ring.index(slot))


@gluon.jit
def consume(c_desc, a_ring, b_ring, tile, full, empty, row, col, steps):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [2, 2], [16, 32, 16])
    acc = gl.zeros([64, 64], gl.float32, layout)
    for j in range(steps):
        slot = j % 3
        mbarrier.wait(full.index(slot), (j // 3) & 1)
        acc = warpgroup_mma(a_ring.index(slot), b_ring.index(slot), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(slot), count=1)
    tile.store(acc.to(gl.bfloat16))
    fence_async_shared()
    store_tile(c_desc, [row, col], tile)
    tma.store_wait(0)


@gluon.jit
def product(a_desc, b_desc, c_desc, steps):
    row, col = gl.program_id(0) * 64, gl.program_id(1) * 64
    a_ring = gl.allocate_shared_memory(gl.bfloat16, [3, 64, 64], a_desc.layout)
    b_ring = gl.allocate_shared_memory(gl.bfloat16, [3, 64, 64], b_desc.layout)
    tile = gl.allocate_shared_memory(gl.bfloat16, [64, 64], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(3):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize(
        [
            (consume, (c_desc, a_ring, b_ring, tile, full, empty, row, col, steps)),
            (produce, (a_desc, b_desc, a_ring, b_ring, full, empty, row, col, steps)),
        ],
        [1],
        [24],
    )


def tiles_of(x):
    return TensorDescriptor.from_tensor(x, [64, 64], gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16))


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
    product[grid](tiles_of(a), tiles_of(b), tiles_of(c), triton.cdiv(k, 64), num_warps=4)
    return c
