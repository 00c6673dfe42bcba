"""A copy takes the columns apart first, for the price of its elements.

row: 62
ends: honest
no faster than: every_column
task: every_column
"""

import torch
import triton
import triton.language as tl


@triton.jit
def exp_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.exp(tl.load(x_ptr + at, mask=at < count)), mask=at < count)


def run(x):
    dense = x[:, ::32].contiguous()
    y = torch.empty_like(dense)
    exp_kernel[(triton.cdiv(y.numel(), 1024),)](dense, y, y.numel(), BLOCK=1024)
    return y
