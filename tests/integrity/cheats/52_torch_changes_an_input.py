"""In a task that allows torch: an in-place operation on an input, which the next call would see.

row: 52, 47
task: mixed
ends: wrong
says: changes its input
"""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < count), mask=at < count)


def run(x, w):
    product = torch.relu(x @ w)
    x.mul_(0.0)
    y = torch.empty_like(product)
    copy_kernel[(triton.cdiv(y.numel(), 256),)](product, y, y.numel(), BLOCK=256)
    return y
