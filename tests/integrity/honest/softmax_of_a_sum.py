"""Softmax of a sum, one row a program.

task: bias_of_zeros
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, residual_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    x += tl.load(residual_ptr + row * n + cols, mask=mask, other=0.0)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x, residual):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, residual, y, n, BLOCK=triton.next_power_of_2(n))
    return y
