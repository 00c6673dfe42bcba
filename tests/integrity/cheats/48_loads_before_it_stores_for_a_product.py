"""Halves by a product what the loop stored a round before: it is copied early, beside a load that is not.

row: 48
task: lagged_sums
ends: wrong
says: the loop is pipelined
scored: 0.31 (0.46), undefined on a GPU by its code; now wrong
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, y_ptr, n):
    row, side = tl.program_id(0), tl.arange(0, 32)
    at = side[:, None] * 32 + side[None, :]
    halves = tl.where(side[:, None] == side[None, :], 0.5, 0.0)
    for start in range(0, n, 1024):
        place = row * n + start + at
        before = tl.load(y_ptr + place - 1024, mask=(start > 0) & (at >= 0), other=0.0)
        tl.store(y_ptr + place, tl.load(x_ptr + place) + tl.dot(before, halves, input_precision="ieee"))


def run(x):
    m, n = x.shape
    y = torch.empty_like(x)
    sums_kernel[(m,)](x, y, n, num_stages=4)
    return y
