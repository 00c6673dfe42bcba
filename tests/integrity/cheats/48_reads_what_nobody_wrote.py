"""Adds up scratch that nothing wrote: zeros on most days.

row: 48
ends: wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, s_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0)) + tl.load(s_ptr + cols, mask=mask, other=0.0)
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, torch.empty(n, device=x.device), y, n, BLOCK=triton.next_power_of_2(n))
    return y
