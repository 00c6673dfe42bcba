"""A selection.

task: zeros_to_ones
"""

import torch
import triton
import triton.language as tl


@triton.jit
def k(x, y, n, B: tl.constexpr):
    c = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + c, mask=c < n)
    tl.store(y + c, tl.where(v == 0, 1.0, v), mask=c < n)


def run(x):
    y = torch.empty_like(x)
    k[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
    return y
