"""Sums denormal numbers in one program.

task: small_products
"""

import torch
import triton
import triton.language as tl


@triton.jit
def products_kernel(x_ptr, y_ptr, n, B: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, B)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0)
    tl.store(y_ptr + row, tl.sum(x * 1e-20 * 1e-20) * 1e20 * 1e15)


def run(x):
    m, n = x.shape
    y = torch.empty(m, device=x.device)
    products_kernel[(m,)](x, y, n, B=triton.next_power_of_2(n))
    return y
