"""Sines of each angle, one after the other.

task: small_angles
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sine_kernel(x_ptr, y_ptr, n, k, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = tl.zeros([BLOCK], dtype=tl.float32)
    for i in range(1, k + 1):
        y += tl.sin(x * i)
    tl.store(y_ptr + at, y, mask=at < n)


def run(x, k):
    y = torch.empty_like(x)
    sine_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), k, BLOCK=512)
    return y
