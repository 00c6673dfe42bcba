"""Does what is undefined within a combiner, where nobody marks it.

row: 61
ends: wrong, runtime_error
says: undefined
"""

import torch
import triton
import triton.language as tl


@triton.jit
def shifted(a, b):
    return (a | b | 1) << 40


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    if tl.reduce(tl.arange(0, 2) + n, 0, shifted) == ((n | (n + 1)) | 1):
        row = tl.program_id(0)
        cols = tl.arange(0, BLOCK)
        mask = cols < n
        x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)


def run(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y
