"""A constant that prints as one number and is another: right where its text is executed, idle when it is compiled.

row: 61
ends: rejected, wrong, build_error
"""

import torch
import triton
import triton.language as tl


class Zero(int):
    def __repr__(self):
        return "1"


WORK = tl.constexpr(Zero(0))


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = (cols < n) & (WORK == 1)
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y
