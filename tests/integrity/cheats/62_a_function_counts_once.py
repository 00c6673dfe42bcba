"""Powers of 64-bit floats by a function of the machine code, which counted once.

row: 62
ends: honest
no faster than: double_powers_loop
task: double_powers
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def power_kernel(x_ptr, y_ptr, n, k, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    for i in range(k):
        x = libdevice.pow(x + 0.5, tl.full([BLOCK], 0.3, tl.float64))
    tl.store(y_ptr + at, x, mask=at < n)


def run(x, k):
    y = torch.empty_like(x)
    power_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), k, BLOCK=512)
    return y
