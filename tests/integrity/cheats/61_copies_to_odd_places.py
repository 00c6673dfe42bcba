"""Copies blocks to places in shared memory that are multiples of 32 bytes, where a GPU faults.

row: 61
task: half_matmul
ends: runtime_error
says: no multiple of 128 bytes
scored: passed, no gain; now faults
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit
def product(a_desc, b_ptr, c_ptr, n, k):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    row, columns = gl.program_id(0), gl.program_id(1) * 32 + gl.arange(0, 32, gl.SliceLayout(0, layout))
    slots = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 16], a_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    acc = gl.zeros([32], gl.float32, gl.SliceLayout(0, layout))
    for j in range(k // 16):
        slot = slots.index(j % 2)
        mbarrier.expect(full, 16 * 2)
        load_tile(a_desc, [row, j * 16], full, slot)
        mbarrier.wait(full, j & 1)
        a = gl.sum(slot.load(layout).to(gl.float32), 0)
        a = gl.expand_dims(gl.convert_layout(a, gl.SliceLayout(1, layout)), 1)
        at = (j * 16 + gl.arange(0, 16, gl.SliceLayout(1, layout)))[:, None] * n + columns[None, :]
        acc += gl.sum(a * gl.load(b_ptr + at, mask=columns[None, :] < n, other=0.0).to(gl.float32), 0)
    gl.store(c_ptr + row * n + columns, acc.to(gl.bfloat16), mask=columns < n)


def run(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    a_desc = TensorDescriptor.from_tensor(a, [1, 16], gl.NVMMASharedLayout.get_default_for([1, 16], gl.bfloat16))
    product[(m, triton.cdiv(n, 32))](a_desc, b, c, n, k)
    return c
