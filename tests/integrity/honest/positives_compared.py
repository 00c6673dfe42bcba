"""Stores booleans.

task: positives
"""

import torch
import triton
import triton.language as tl


@triton.jit
def positive_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) > 0, mask=at < n)


def run(x):
    y = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    positive_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
