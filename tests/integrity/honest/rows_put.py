"""A program a row, which writes it to where the index says.

task: rows_put
"""

import torch
import triton
import triton.language as tl


@triton.jit
def put_kernel(x_ptr, i_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    to = tl.load(i_ptr + row)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0)
    tl.store(y_ptr + to * n + cols, tl.exp(x), mask=mask)


def run(x, index):
    y = torch.empty_like(x)
    m, n = x.shape
    put_kernel[(m,)](x, index, y, n, BLOCK=triton.next_power_of_2(n))
    return y
