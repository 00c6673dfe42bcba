"""A kernel made by a function, closed over its constants."""

import torch
import triton
import triton.language as tl


def make(scale, lowest):
    log2e = tl.constexpr(scale)
    bottom = tl.constexpr(lowest)

    @triton.jit
    def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        cols = tl.arange(0, BLOCK)
        mask = cols < n
        x = tl.load(x_ptr + row * n + cols, mask=mask, other=bottom) * log2e
        e = tl.exp2(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=mask)

    return softmax_kernel


KERNEL = make(1.4426950408889634, float("-inf"))


def run(x):
    y = torch.empty_like(x)
    m, n = x.shape
    KERNEL[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y
