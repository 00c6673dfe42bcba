"""Blocks of a row add up through atomics into zeros: this task allows it.

task: row_sums
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + at, mask=at < n, other=0.0)
    tl.atomic_add(y_ptr + tl.program_id(0), tl.sum(x, axis=0), sem="relaxed")


def run(x):
    m, n = x.shape
    y = torch.zeros(m, dtype=x.dtype, device=x.device)
    sum_kernel[(m, triton.cdiv(n, 512))](x, y, n, BLOCK=512)
    return y
