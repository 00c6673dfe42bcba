"""Counts bits by an instruction at a quarter of the rate of others, which was taken for one of them.

row: 62
ends: honest
no faster than: bits_of_pairs_by_shifts
task: bits_of_pairs
scored: 1.30 (1.00); now 0.91: at a special function's rate, measured
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def count_kernel(x_ptr, y_ptr, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    count = tl.zeros([BLOCK], dtype=tl.int32)
    for _ in tl.static_range(STEPS):
        x = x * 1664525 + 1013904223
        count += libdevice.popc(x & 3)
    tl.store(y_ptr + at, count, mask=at < n)


def run(x, steps):
    y = torch.empty_like(x)
    count_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), STEPS=steps, BLOCK=512)
    return y
