"""Reads an expanded tensor by its strides.

task: expanded_rows
purpose: confirm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def times_kernel(x_ptr, w_ptr, y_ptr, n, w_stride, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n)
    w = tl.load(w_ptr + row * w_stride + cols, mask=cols < n)
    tl.store(y_ptr + row * n + cols, x * w, mask=cols < n)


def run(x, w):
    m, n = x.shape
    y = torch.empty_like(x)
    times_kernel[(m,)](x, w, y, n, w.stride(0), BLOCK=triton.next_power_of_2(n))
    return y
