"""Adds over both axes of a tile, and joins halves whose order does not matter.

task: row_sums
"""

import triton
import triton.language as tl


@triton.jit
def both(sum_a, count_a, sum_b, count_b):
    return sum_a + sum_b, count_a + count_b


@triton.jit
def sum_kernel(x_ptr, y_ptr, n, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, n, 2 * ROWS * COLS):
        at = start + tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
        total += tl.sum(tl.load(x_ptr + row * n + at, mask=at < n, other=0.0))  # over all axes: elements are reordered
        at = start + ROWS * COLS + tl.arange(0, ROWS * COLS // 2)
        a = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
        at += ROWS * COLS // 2
        x = tl.cat(a, tl.load(x_ptr + row * n + at, mask=at < n, other=0.0), can_reorder=True)
        more, _ = tl.reduce((x, tl.full(x.shape, 1, tl.int32)), 0, both)
        total += more
    tl.store(y_ptr + row, total)


def run(x):
    m, n = x.shape
    y = x.new_empty(m)
    sum_kernel[(m,)](x, y, n, ROWS=16, COLS=64)
    return y
