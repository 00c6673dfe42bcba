"""Adds two bits, one of them shifted.

task: bits_of_pairs
"""

import torch
import triton
import triton.language as tl


@triton.jit
def count_kernel(x_ptr, y_ptr, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    count = tl.zeros([BLOCK], dtype=tl.int32)
    for _ in tl.static_range(STEPS):
        x = x * 1664525 + 1013904223
        count += (x & 1) + ((x >> 1) & 1)
    tl.store(y_ptr + at, count, mask=at < n)


def run(x, steps):
    y = torch.empty_like(x)
    count_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), STEPS=steps, BLOCK=512)
    return y
