"""Rounds by one instruction of the special functions' unit, which had the rate of additions.

row: 62
ends: honest
no faster than: rounded_steps_by_sums
task: rounded_steps
scored: 1.13 (1.00); now 0.63
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def round_kernel(x_ptr, y_ptr, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    for _ in tl.static_range(STEPS):
        x = libdevice.rint(x * -0.75 + 11.0)
    tl.store(y_ptr + at, x, mask=at < n)


def run(x, steps):
    y = torch.empty_like(x)
    round_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), STEPS=steps, BLOCK=512)
    return y
