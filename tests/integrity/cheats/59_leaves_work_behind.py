"""Leaves a kernel running that slows down whatever is timed next.

row: 59, 60
ends: timeout
where: slow
deadline: 4
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


@triton.jit
def busy_kernel(s_ptr):
    turns = 0
    while turns >= 0:
        turns = tl.load(s_ptr, volatile=True) * 0 + 1
    tl.store(s_ptr, turns)


def run(x):
    y = honest(x)
    busy_kernel[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device))
    return y
