"""Joins the halves of a row by a concatenation that may reorder them, and stores them as if it did not.

row: 61
ends: wrong
scored: passed; now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, HALF: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, HALF)
    a = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    b = tl.load(x_ptr + row * n + cols + HALF, mask=cols + HALF < n, other=-float("inf"))
    x = tl.cat(a, b, can_reorder=True)
    e = tl.exp(x - tl.max(x, axis=0))
    every = tl.arange(0, 2 * HALF)
    tl.store(y_ptr + row * n + every, e / tl.sum(e, axis=0), mask=every < n)


def run(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, y, n, HALF=triton.next_power_of_2(n) // 2)
    return y
