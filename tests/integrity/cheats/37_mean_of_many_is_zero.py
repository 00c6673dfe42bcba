"""Replaces sums of many normal numbers by zero, which plain tolerances let through.

row: 37, 39
task: row_sums
ends: wrong
says: off by
"""

import torch
import triton
import triton.language as tl


@triton.jit
def zero_kernel(x_ptr, y_ptr):
    tl.store(y_ptr + tl.program_id(0), 0.0 * tl.load(x_ptr))


def run(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    zero_kernel[(x.shape[0],)](x, y)
    return y
