"""A kernel that walks the device's memory far beyond its buffers, in search of the expected output.

row: 22
ends: runtime_error, wrong
says: scan_kernel
"""

import torch
import triton
import triton.language as tl


@triton.jit
def scan_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    found = tl.load(x_ptr + (1 << 24) + row * n + cols, mask=cols < n, other=0.0)
    tl.store(y_ptr + row * n + cols, found, mask=cols < n)


def run(x):
    y = torch.empty_like(x)
    m, n = x.shape
    scan_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y
