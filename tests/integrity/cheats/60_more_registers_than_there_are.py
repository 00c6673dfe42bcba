"""32 warps of more registers than a block can have: no spills, and no GPU launches it.

row: 60
task: softmax_large
ends: build_error
says: registers in each of 1024 threads
scored: 2.03 (1.00) on rows of 65,536
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * n + at, e / tl.sum(e, 0), mask=at < n)


def run(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=65536, num_warps=32, maxnreg=200)
    return y
