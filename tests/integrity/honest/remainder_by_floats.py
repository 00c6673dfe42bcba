"""The remainder by a quotient of floats, put right: no division of 64 bits.

task: remainders
"""

import torch
import triton
import triton.language as tl


@triton.jit
def mod_kernel(x_ptr, y_ptr, n, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=1)
    for i in range(steps):
        m = 1099511627689 + 2 * i.to(tl.int64)
        q = (x.to(tl.float64) * (1.0 / m.to(tl.float64))).to(tl.int64)
        r = x - q * m
        r = tl.where(r < 0, r + m, r)
        r = tl.where(r >= m, r - m, r)
        x = r * 4194301 + 7919 * 1048576
    tl.store(y_ptr + at, x, mask=at < n)


def run(x, steps):
    y = torch.empty_like(x)
    mod_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), steps, BLOCK=512)
    return y
