"""Starts the maximum of integers from zero, where a row ends before a block.

row: 42
task: integer_maxima
ends: wrong
purpose: confirm
scored: passed; wrong when confirmed
"""

import torch
import triton
import triton.language as tl


@triton.jit
def maxima_kernel(x_ptr, y_ptr, place_ptr, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=0)
    most, place = tl.max(x, 0, return_indices=True)
    tl.store(y_ptr + row, most)
    tl.store(place_ptr + row, place.to(tl.int64))


def run(x):
    m, n = x.shape
    y, places = x.new_empty(m), x.new_empty(m, dtype=torch.int64)
    maxima_kernel[(m,)](x, y, places, n, BLOCK=triton.next_power_of_2(n))
    return y, places
