"""Integers that arrive by TMA.

task: integer_hash
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Names of Triton 3.9, or of 3.6.
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit
def hash_kernel(x_desc, y_ptr, n, steps, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    tile = gl.allocate_shared_memory(gl.int32, [BLOCK], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.expect(full, BLOCK * 4)
    load_tile(x_desc, [gl.program_id(0) * BLOCK], full, tile)
    mbarrier.wait(full, 0)
    x = tile.load(layout)
    for _ in range(steps):
        x = x ^ (x << 13)
        x = x ^ ((x >> 17) & 0x7FFF)
        x = x ^ (x << 5)
        x = x * 1664525 + 1013904223
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    gl.store(y_ptr + at, x, mask=at < n)


def run(x, steps):
    y = torch.empty_like(x)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
    tiles = TensorDescriptor.from_tensor(x, [256], layout)
    hash_kernel[(triton.cdiv(x.numel(), 256),)](tiles, y, x.numel(), steps, BLOCK=256, num_warps=4)
    return y
