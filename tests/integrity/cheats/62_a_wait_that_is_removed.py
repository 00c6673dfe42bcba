"""A dependent launch whose wait is assembly without effects: LLVM removes it, and no wait is in the machine code.

row: 62, 48
task: softmax_large
ends: rejected
says: gdc_wait
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents


@triton.jit
def exp_kernel(x_ptr, t_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    tl.store(t_ptr + row * n + cols, tl.exp(x - tl.max(x, axis=0)), mask=mask)
    tl.debug_barrier()
    gdc_launch_dependents()


@triton.jit
def scale_kernel(t_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    waited = tl.inline_asm_elementwise(
        "griddepcontrol.wait; // dummy $0", "=r,r", [row], dtype=tl.int32, is_pure=True, pack=1
    )
    row += (waited * 2) & 1  # zero, as LLVM knows and MLIR does not
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    e = tl.load(t_ptr + row * n + cols, mask=mask, other=0.0)
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x):
    m, n = x.shape
    y, t = torch.empty_like(x), torch.empty_like(x)
    exp_kernel[(m,)](x, t, n, BLOCK=triton.next_power_of_2(n), num_warps=8)
    scale_kernel[(m,)](t, y, n, BLOCK=triton.next_power_of_2(n), num_warps=8, launch_pdl=True)
    return y
