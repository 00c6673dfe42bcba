"""A dependent launch that never waits for the kernel whose results it reads, and runs beside it.

row: 62
ends: rejected
says: gdc_wait
scored: 0.52; now rejected; a prefetch before the wait is refused too
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents


@triton.jit
def exp_kernel(x_ptr, t_ptr, n, BLOCK: tl.constexpr):
    gdc_launch_dependents()
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    tl.store(t_ptr + row * n + cols, tl.exp(x - tl.max(x, axis=0)), mask=mask)


@triton.jit
def scale_kernel(t_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    e = tl.load(t_ptr + row * n + cols, mask=mask, other=0.0)
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x):
    m, n = x.shape
    y, t = torch.empty_like(x), torch.empty_like(x)
    exp_kernel[(m,)](x, t, n, BLOCK=triton.next_power_of_2(n))
    scale_kernel[(m,)](t, y, n, BLOCK=triton.next_power_of_2(n), launch_pdl=True)
    return y
