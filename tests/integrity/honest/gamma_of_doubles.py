"""The library's function.

task: gamma_of_doubles
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def gamma_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=1.0)
    tl.store(y_ptr + at, libdevice.lgamma(x) * 2, mask=at < n)


def run(x):
    y = torch.empty_like(x)
    gamma_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
