"""Counts on NaN becoming 0, as NaN of float32 does: of float64 it becomes the least integer.

row: 61
task: integers_of_doubles
ends: wrong
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def integer_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, libdevice.double2int_rn(x), mask=at < n)


def run(x):
    y = torch.empty_like(x, dtype=torch.int32)
    integer_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
