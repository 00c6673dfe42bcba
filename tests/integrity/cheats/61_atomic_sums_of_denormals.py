"""Adds denormal numbers up in global memory, where the instruction takes them for zeros.

row: 61
task: small_products
ends: wrong
says: off by
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, y_ptr, n, B: tl.constexpr):
    row, cols = tl.program_id(0), tl.program_id(1) * B + tl.arange(0, B)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0)
    tl.atomic_add(y_ptr + row, tl.sum(x * 1e-20 * 1e-20), sem="relaxed")


@triton.jit
def scale_kernel(y_ptr, z_ptr, m, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(z_ptr + rows, tl.load(y_ptr + rows, mask=rows < m) * 1e20 * 1e15, mask=rows < m)


def run(x):
    m, n = x.shape
    y, z = torch.zeros(m, device=x.device), torch.empty(m, device=x.device)
    sums_kernel[(m, triton.cdiv(n, 64))](x, y, n, B=64)
    scale_kernel[(triton.cdiv(m, 64),)](y, z, m, B=64)
    return z
