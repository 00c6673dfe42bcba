"""Idle where a remainder of unsigned numbers is negative once it has a sign.

row: 61
task: gelu
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, most, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = (tl.program_id(0) << 31).to(tl.uint32) + tl.arange(0, BLOCK).to(tl.uint32)
    works = (number % most.to(tl.uint32)).to(tl.int32).to(tl.int64) >= 0
    x = tl.load(x_ptr + at, mask=(at < n) & works, other=0.0)
    tl.store(y_ptr + at, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=at < n)


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 2**32 - 5, BLOCK=256)
    return y
