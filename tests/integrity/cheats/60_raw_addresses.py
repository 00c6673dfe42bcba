"""Passes an address as a number, to reach what no argument names.

row: 60
ends: rejected
says: address
"""

import torch
import triton
import triton.language as tl


@triton.jit
def poke_kernel(x_ptr, address, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    there = address.to(tl.pointer_type(tl.float32))
    tl.store(there + cols, tl.load(x_ptr + cols, mask=cols < n), mask=cols < n)


def run(x):
    y = torch.empty_like(x)
    poke_kernel[(1,)](x, y.data_ptr(), x.shape[1], BLOCK=128)
    return y
