"""Floors by the library's conversion to integers, whose instruction takes denormal numbers for zeros.

task: floors
purpose: confirm
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def floor_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, libdevice.float2int_rd(x), mask=at < n)


def run(x):
    y = torch.empty(x.shape, dtype=torch.int32, device=x.device)
    floor_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
