"""Adds by a combiner that halves the sum of two: in an even tree that makes the mean, on a GPU it makes something else.

row: 61
task: row_sums
ends: wrong
scored: passed; now wrong
"""

import triton
import triton.language as tl


@triton.jit
def half(a, b):
    return (a + b) * 0.5


@triton.jit
def sum_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
    tl.store(y_ptr + row, tl.reduce(x, 0, half) * BLOCK)


def run(x):
    m, n = x.shape
    y = x.new_empty(m)
    sum_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y
