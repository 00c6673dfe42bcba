"""Sums every second element and doubles it.

row: 39
task: row_sums
ends: wrong
says: off by
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, 2 * BLOCK):
        at = start + 2 * tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
    tl.store(y_ptr + row, 2.0 * tl.sum(acc, axis=0))


def run(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=512)
    return y
