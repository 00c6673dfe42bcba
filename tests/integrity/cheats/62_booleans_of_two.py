"""Stores 2 for true, which compares like 1 but adds up to twice as much.

row: 62
ends: wrong
says: booleans are 0 or 1
task: positives
scored: passed, no gain; now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def positive_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    positive = tl.load(x_ptr + at, mask=at < n) > 0
    tl.store(y_ptr.to(tl.pointer_type(tl.int8)) + at, tl.where(positive, 2, 0).to(tl.int8), mask=at < n)


def run(x):
    y = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    positive_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
