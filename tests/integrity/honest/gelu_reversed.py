"""Lanes lie in the order that memory does not: a warp asks for the same sectors.

task: gelu
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + (BLOCK - 1 - tl.arange(0, BLOCK))
    x = tl.load(x_ptr + at, mask=at < count, other=0.0)
    tl.store(y_ptr + at, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=at < count)


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
