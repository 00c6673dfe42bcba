"""A cooperative launch of more blocks than fit on the GPU at once, which no GPU launches.

row: 60
task: softmax_large
ends: rejected
says: fit on this GPU at once
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
    block = triton.next_power_of_2(x.shape[1])
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=block, num_warps=16, launch_cooperative_grid=True)
    return y
