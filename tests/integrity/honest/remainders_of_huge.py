"""Powers by repeated squaring, each remainder by a product of doubles.

task: remainders_of_huge
"""

import torch
import triton
import triton.language as tl


@triton.jit
def modulo(x, m, inverse):
    x = tl.math.fma(-tl.floor(x * inverse), m, x)
    x = tl.where(x < 0, x + m, x)
    return tl.where(x >= m, x - m, x)


@triton.jit
def mod_kernel(x_ptr, z_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.load(z_ptr + at, mask=at < n, other=1).to(tl.float64)
    inverse = 1.0 / m
    r = modulo(tl.load(x_ptr + at, mask=at < n, other=1).to(tl.float64), m, inverse)
    p = modulo(tl.full((BLOCK,), 2.0, tl.float64), m, inverse)
    for bit in tl.static_range(10):
        if (900 >> bit) & 1:
            r = modulo(r * p, m, inverse)
        p = modulo(p * p, m, inverse)
    tl.store(y_ptr + at, r.to(tl.int32), mask=at < n)


def run(x, m):
    y = torch.empty_like(x)
    mod_kernel[(triton.cdiv(x.numel(), 512),)](x, m, y, x.numel(), BLOCK=512)
    return y
