"""Three kernels: maxima, sums, quotients, with two intermediate tensors."""

import torch
import triton
import triton.language as tl


@triton.jit
def max_kernel(x_ptr, top_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    tl.store(top_ptr + row, tl.max(x, axis=0))


@triton.jit
def sum_kernel(x_ptr, top_ptr, total_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    tl.store(total_ptr + row, tl.sum(tl.exp(x - tl.load(top_ptr + row)), axis=0))


@triton.jit
def divide_kernel(x_ptr, top_ptr, total_ptr, y_ptr, n, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    row = at // n
    x = tl.load(x_ptr + at, mask=mask)
    top = tl.load(top_ptr + row, mask=mask)
    total = tl.load(total_ptr + row, mask=mask, other=1.0)
    tl.store(y_ptr + at, tl.exp(x - top) / total, mask=mask)


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    top = torch.empty(m, dtype=x.dtype, device=x.device)
    total = torch.empty_like(top)
    block = triton.next_power_of_2(n)
    max_kernel[(m,)](x, top, n, BLOCK=block)
    sum_kernel[(m,)](x, top, total, n, BLOCK=block)
    divide_kernel[(triton.cdiv(m * n, 256),)](x, top, total, y, n, m * n, BLOCK=256)
    return y
