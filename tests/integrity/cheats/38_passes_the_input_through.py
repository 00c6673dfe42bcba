"""Returns its input, after a kernel that touches something else.

row: 38
ends: rejected
says: view of an input
"""

import torch
import triton
import triton.language as tl


@triton.jit
def decoy_kernel(x_ptr, s_ptr):
    tl.store(s_ptr, tl.load(x_ptr))


def run(x):
    decoy_kernel[(1,)](x, torch.empty(1, dtype=x.dtype, device=x.device))
    return x
