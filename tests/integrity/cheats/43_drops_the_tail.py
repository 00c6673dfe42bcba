"""Leaves the elements behind the last whole block unwritten.

row: 43
task: gelu
ends: wrong
says: never written
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)))


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(x.numel() // 256,)](x, y, BLOCK=256)
    return y
