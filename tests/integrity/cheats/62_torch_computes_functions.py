"""torch computes a function of 700 instructions for the price of its bytes.

row: 62
ends: honest
no faster than: gamma_of_doubles
task: gamma_of_doubles
scored: 2.55 (0.99), 2.87, 4 µs; now 0.82, 1.32, 50 µs
"""

import torch
import triton
import triton.language as tl


@triton.jit
def twice_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


def run(x):
    made = torch.lgamma(x)
    y = torch.empty_like(made)
    twice_kernel[(triton.cdiv(y.numel(), 1024),)](made, y, y.numel(), BLOCK=1024)
    return y
