"""Lanes load one factor under a mask, join it with its negative, and carry it out of branches and loops.

task: scaled_pairs
"""

import triton
import triton.language as tl


@triton.jit
def pairs_kernel(x_ptr, factor_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + c, mask=c < n)
    factor = tl.load(factor_ptr + 0 * c, mask=c < n)
    if row % 2 == 1:
        factor = -tl.load(factor_ptr + 0 * c, mask=c < n)
    for _ in range(row % 3):
        factor = -factor
    signed = tl.where((row % 2 + row % 3) % 2 == 1, -factor, factor)
    y = tl.join(signed, -signed) * x[:, None]
    places = 2 * c[:, None] + tl.arange(0, 2)[None, :]
    tl.store(y_ptr + row * 2 * n + places, y, mask=(c < n)[:, None])


def run(x, factor):
    m, n = x.shape
    y = x.new_empty(m, 2 * n)
    pairs_kernel[(m,)](x, factor, y, n, BLOCK=triton.next_power_of_2(n))
    return y
