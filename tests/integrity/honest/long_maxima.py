"""A loop for long rows alone, which only timed cases have.

task: long_maxima
purpose: confirm
"""

import triton
import triton.language as tl


@triton.jit
def maxima_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row * n + start + at, mask=start + at < n, other=float("-inf"))
        most = tl.maximum(most, x)
    tl.store(y_ptr + row, tl.max(most, 0))


@triton.jit
def short_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(y_ptr + row, tl.max(tl.load(x_ptr + row * n + at, mask=at < n, other=float("-inf")), 0))


def run(x):
    m, n = x.shape
    y = x.new_empty(m)
    if n > 1024:
        maxima_kernel[(m,)](x, y, n, BLOCK=1024)
    else:
        short_kernel[(m,)](x, y, n, BLOCK=1024)
    return y
