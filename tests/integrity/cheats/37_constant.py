"""Writes 1 / n everywhere: the right sum, the right mean, the wrong answer.

row: 37
ends: wrong
says: off by
"""

import torch
import triton
import triton.language as tl


@triton.jit
def constant_kernel(y_ptr, n, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.zeros((BLOCK,), tl.float32) + 1.0 / n, mask=at < count)


def run(x):
    y = torch.empty_like(x)
    constant_kernel[(triton.cdiv(x.numel(), 256),)](y, x.shape[1], x.numel(), BLOCK=256)
    return y
