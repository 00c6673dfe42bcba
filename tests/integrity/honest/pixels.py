"""Bytes hold what is drawn, and do not what regimes make of it.

task: pixels
purpose: confirm
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def pixels_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, libdevice.rint(x * 255.0).to(tl.uint8), mask=at < n)


def run(x):
    y = torch.empty_like(x, dtype=torch.uint8)
    pixels_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
