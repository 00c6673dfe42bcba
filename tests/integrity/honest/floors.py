"""Floors by the instruction of a GPU, which takes denormal numbers for zeros.

task: floors
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def floor_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, tl.floor(x).to(tl.int32), mask=at < n)


def run(x):
    y = torch.empty(x.shape, dtype=torch.int32, device=x.device)
    floor_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
