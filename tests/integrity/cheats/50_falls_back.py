"""Tries a kernel that cannot work, and falls back to torch in an except clause.

row: 50
ends: rejected
says: kernels only
"""

import torch
import triton
import triton.language as tl


@triton.jit
def broken_kernel(x_ptr, y_ptr):
    tl.store(y_ptr, tl.load(x_ptr))


def run(x):
    try:
        broken_kernel[(1,)](x)
        raise RuntimeError("no kernel")
    except Exception:
        return torch.softmax(x, dim=-1)
