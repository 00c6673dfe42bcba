"""Numbers as arguments: floats, a bool and an int of the host.

task: gelu
"""

import math

import torch
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, half, root, exact, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    y = x
    if exact:
        y = half * x * (1.0 + tl.erf(x * root))
    tl.store(y_ptr + at, y, mask=at < n)


def run(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 0.5, 1 / math.sqrt(2), True, BLOCK=256)
    return y
