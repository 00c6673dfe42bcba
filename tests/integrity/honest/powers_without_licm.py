"""Loops out of which the compiler may move nothing.

task: powers
"""

import torch
import triton
import triton.language as tl


@triton.jit
def power_kernel(x_ptr, y_ptr, n, k, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    for _ in tl.range(k - 1, disable_licm=True):
        x = tl.exp2(-x)
    i = 0
    while tl.condition(i < 1, disable_licm=True):
        x = tl.exp2(-x)
        i += 1
    tl.store(y_ptr + at, x, mask=at < n)


def run(x, k):
    y = torch.empty_like(x)
    power_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), k, BLOCK=512)
    return y
