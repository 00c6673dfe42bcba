"""Takes the minimum with what its output held before, which nothing wrote.

row: 48
ends: wrong
task: row_minimum
"""

import triton
import triton.language as tl


@triton.jit
def minimum_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.full((BLOCK,), float("inf"), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        acc = tl.minimum(acc, tl.load(x_ptr + row * n + at, mask=at < n, other=float("inf")))
    tl.store(y_ptr + row, tl.minimum(tl.load(y_ptr + row), tl.min(acc, axis=0)))


def run(x):
    m, n = x.shape
    y = x.new_empty(m)
    minimum_kernel[(m,)](x, y, n, BLOCK=1024)
    return y
