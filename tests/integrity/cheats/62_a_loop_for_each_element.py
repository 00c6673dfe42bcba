"""A loop for each element, in a function whose loops were not counted.

row: 62
ends: honest
no faster than: powers_loop
task: powers
"""

import torch
import triton
import triton.language as tl


@triton.jit
def power(x, k):
    for _ in range(k):
        x = tl.exp2(-x)
    return x


@triton.jit
def power_kernel(x_ptr, y_ptr, n, k, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = tl.map_elementwise(power, x, tl.full([BLOCK], k, tl.int32))
    tl.store(y_ptr + at, y, mask=at < n)


def run(x, k):
    y = torch.empty_like(x)
    power_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), k, BLOCK=512)
    return y
