"""Works in place on its input and returns that.

row: 47, 60
ends: rejected
says: view of an input
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def honest(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y


def run(x):
    m, n = x.shape
    softmax_kernel[(m,)](x, x, n, BLOCK=triton.next_power_of_2(n))
    return x
