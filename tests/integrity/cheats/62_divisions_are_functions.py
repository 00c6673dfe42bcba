"""Divides numbers of 64 bits: a function of the assembler's, which counted once however often it is called.

row: 62
ends: honest
no faster than: remainder_by_floats
task: remainders
scored: 2.13; now 0.32
"""

import torch
import triton
import triton.language as tl


@triton.jit
def mod_kernel(x_ptr, y_ptr, n, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=1)
    for i in range(steps):
        x = (x % (1099511627689 + 2 * i.to(tl.int64))) * 4194301 + 7919 * 1048576
    tl.store(y_ptr + at, x, mask=at < n)


def run(x, steps):
    y = torch.empty_like(x)
    mod_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), steps, BLOCK=512)
    return y
