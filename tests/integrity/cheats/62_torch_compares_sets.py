"""torch sorts both sets, for the price of its bytes, and waits for the GPU; a kernel copies the flags.

row: 62
ends: rejected
says: waits for the GPU
task: memberships
"""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def run(members, x):
    found = torch.isin(x, members)
    y = torch.empty_like(found)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](found, y, x.numel(), BLOCK=1024)
    return y
